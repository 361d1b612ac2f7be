"""The span of one request, with what observers of language models expect to find on it."""

from common.requests import Request
from common.trace_context import TraceContext
from common.tracing import Span
from coordinator.engine.request_times import RequestTimes

SPAN_NAME = "stepwire.request"


class RequestSpan:
    """From the arrival of a request to the end of its last output; it ends once."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._attributes: dict[str, str | int | float | bool] = {}
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    @property
    def context(self) -> TraceContext | None:
        """What ranks are told."""
        return self._span.context

    def note_output(self, request: Request, times: RequestTimes, *, num_tokens: int) -> None:
        """One of its outputs has ended with so many tokens."""
        self._num_prompt_tokens += len(request.prompt_token_ids)
        self._num_generated_tokens += num_tokens
        moments = (("time_in_queue", times.queued, times.scheduled),)
        moments += (("time_to_first_token", times.arrived, times.first_token),)
        for name, start, end in moments:
            if start is not None and end is not None:
                self._attributes[f"gen_ai.latency.{name}"] = end - start
        self._attributes["gen_ai.request.max_tokens"] = request.stopping.max_tokens

    def end(self, *, request_id: str, model: str, end: str) -> None:
        """The request has ended for this reason."""
        self._attributes |= {
            "gen_ai.request.id": request_id,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": end,
            "gen_ai.usage.prompt_tokens": self._num_prompt_tokens,
            "gen_ai.usage.completion_tokens": self._num_generated_tokens,
        }
        self._span.end(self._attributes)

    def refuse(self, *, request_id: str, cause: str) -> None:
        """The request was not accepted."""
        self._span.end({"gen_ai.request.id": request_id}, failure=cause)
