"""The spans of the requests a rank holds: from the step that brings one to the step that drops it.

Lives on the device thread. A request without a trace has none; what a trace is for, the log lines
of a step that failed, works without anyone who collects spans.
"""

from common.step import SchedulerOutput
from common.tracing import NoTracer, Span, Tracer
from common.worker_api import Rank

SPAN_NAME = "stepwire.rank"


class RequestSpans:
    """The requests of one generation on one rank."""

    def __init__(self, tracer: Tracer | None = None, *, rank: Rank | None = None) -> None:
        self._tracer = tracer or NoTracer()
        self._rank = "" if rank is None else str(rank)
        self._spans: dict[int, Span] = {}

    def note_step(self, output: SchedulerOutput) -> None:
        """A validated step begins: what it drops ends, what it brings begins."""
        if self._spans:
            for handle in output.finished_handles.tolist():
                self._end(handle, "finished")
            for handle in output.preempted_handles.tolist():
                self._end(handle, "preempted")
        for request in output.new_requests:
            if request.trace is not None:
                self._spans[request.handle] = self._tracer.start(SPAN_NAME, request.trace)

    def trace_ids(self, output: SchedulerOutput) -> list[str]:
        """The traces of a step's requests, for the log."""
        spans = [self._spans[handle] for handle in output.handles if handle in self._spans]
        return [span.context.trace_id for span in spans if span.context is not None]

    def end_all(self) -> None:
        """The generation is over for this rank, and so is what it held.

        That is no failure: a request may have ended without this rank being told.
        """
        for handle in list(self._spans):
            self._end(handle, "generation over")

    def _end(self, handle: int, end: str) -> None:
        span = self._spans.pop(handle, None)
        if span is not None:
            span.end({"stepwire.rank": self._rank, "stepwire.handle": handle, "stepwire.end": end})
