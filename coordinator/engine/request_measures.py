"""What is counted of requests: how they ended, what they asked, and where their time went.

Every sequence counts as a request: one that asks for n outputs counts n times.
"""

from collections import Counter
from collections.abc import Iterable

from common.distribution import Distribution, one_two_five
from common.requests import FinishReason, Request
from coordinator.engine.request_times import RequestTimes

# Bounds in seconds and in tokens, those of vLLM, so that its dashboards read ours.
LATENCY_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
BETWEEN_TOKENS_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
NUM_CHOICES = (1, 2, 5, 10, 20)
NUM_TOKENS = one_two_five(2**31)

ERROR = "error"
"""The end of a request that failed; all others end with a FinishReason."""

ENDS = (*(reason.value for reason in FinishReason), ERROR)


class RequestMeasures:
    """Counts and distributions since the start; written and read on the event loop.

    num_ended: requests that have ended, by finish reason; a reader who left counts as abort.
    num_refused: requests that were not accepted, by the name of the error.
    num_generated_tokens: those that were handed to clients, as their usage says.
    """

    def __init__(self) -> None:
        self.num_ended: Counter[str] = Counter({end: 0 for end in ENDS})
        self.num_refused: Counter[str] = Counter()
        self.num_generated_tokens = 0
        self.first_token = Distribution(FIRST_TOKEN_SECONDS)
        self.between_tokens = Distribution(BETWEEN_TOKENS_SECONDS)
        self.per_output_token = Distribution(BETWEEN_TOKENS_SECONDS)
        self.latency = Distribution(LATENCY_SECONDS)
        self.queued = Distribution(LATENCY_SECONDS)
        self.prefill = Distribution(LATENCY_SECONDS)
        self.decode = Distribution(LATENCY_SECONDS)
        self.inference = Distribution(LATENCY_SECONDS)
        self.prompt_tokens = Distribution(NUM_TOKENS)
        self.generated_tokens = Distribution(NUM_TOKENS)
        self.max_tokens = Distribution(NUM_TOKENS)
        self.num_choices = Distribution(NUM_CHOICES)

    def note_tokens(self, requests: Iterable[RequestTimes], *, now: float) -> None:
        """Each of these requests got its next token now."""
        # Runs over every row of every step. Most rows had their last token at the same moment.
        last, num_alike = now, 0
        for times in requests:
            if times.last_token is None:
                times.first_token = now
                self.first_token.add(now - times.arrived)
            elif times.last_token == last:
                num_alike += 1
            else:
                self._note_between(now - last, num_alike)
                last, num_alike = times.last_token, 1
            times.last_token = now
        self._note_between(now - last, num_alike)

    def note_generated(self, count: int) -> None:
        """A client was handed so many tokens."""
        self.num_generated_tokens += count

    def note_ended(
        self, request: Request, times: RequestTimes, *, end: str, num_tokens: int, now: float
    ) -> None:
        """A request has ended with so many tokens handed out."""
        self.num_ended[end] += 1
        self.prompt_tokens.add(len(request.prompt_token_ids))
        self.generated_tokens.add(num_tokens)
        self.max_tokens.add(request.stopping.max_tokens)
        # What its reader still had to be told after the last token is not the service's time.
        is_whole = end in (FinishReason.STOP.value, FinishReason.LENGTH.value)
        ended = times.last_token if is_whole and times.last_token is not None else now
        self.latency.add(ended - times.arrived)
        if times.queued is not None and times.scheduled is not None:
            self.queued.add(times.scheduled - times.queued)
        if times.scheduled is None or times.first_token is None or times.last_token is None:
            return
        decode = times.last_token - times.first_token
        self.prefill.add(times.first_token - times.scheduled)
        self.decode.add(decode)
        self.inference.add(times.last_token - times.scheduled)
        self.per_output_token.add(decode / (num_tokens - 1) if num_tokens > 1 else 0.0)

    def _note_between(self, seconds: float, count: int) -> None:
        if count:
            self.between_tokens.add(seconds, count)
