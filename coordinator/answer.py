"""Asks a running coordinator, writes the answer as it arrives, and measures it as the client sees it."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

from common.clock import Clock, SystemClock
from common.requests import FinishReason
from coordinator.client import Client, GenerateOptions
from coordinator.engine.generation import ChatTurn, TextDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats:
    """Tokens of prompt and answer, seconds to the first token and to the end, why it ended."""

    num_prompt_tokens: int
    num_generated_tokens: int
    first_token_seconds: float
    total_seconds: float
    finish_reason: FinishReason | None

    @property
    def tokens_per_second(self) -> float:
        """Rate after the first token, 0 when there was no second one."""
        seconds = self.total_seconds - self.first_token_seconds
        return max(0, self.num_generated_tokens - 1) / seconds if seconds > 0 else 0.0

    def __str__(self) -> str:
        """One line for people."""
        reason = self.finish_reason.value if self.finish_reason else "none"
        return (
            f"{self.num_prompt_tokens} prompt tokens, {self.num_generated_tokens} generated "
            f"(ended by: {reason}), first token after {self.first_token_seconds * 1000:.0f} ms, "
            f"{self.tokens_per_second:.1f} tokens/s"
        )


def ask(
    prompt: str | tuple[ChatTurn, ...],
    options: GenerateOptions,
    *,
    address: str,
    write: Callable[[str], object],
) -> AnswerStats:
    """Send the prompt to the coordinator at HOST:PORT and write its answer; raises ServiceError."""
    with Client(address) as client, closing(client.generate(prompt, **options)) as deltas:
        return write_answer(deltas, write=write, clock=SystemClock())


def write_answer(
    deltas: Iterable[TextDelta], *, write: Callable[[str], object], clock: Clock
) -> AnswerStats:
    """Write each delta's text at once; the time runs from the call to the end of the deltas."""
    start = clock.monotonic()
    first_token_seconds: float | None = None
    delta: TextDelta | None = None
    for delta in deltas:
        if first_token_seconds is None and delta.token_ids:
            first_token_seconds = clock.monotonic() - start
        write(delta.text)
    total_seconds = clock.monotonic() - start
    return AnswerStats(
        num_prompt_tokens=delta.num_prompt_tokens if delta else 0,
        num_generated_tokens=delta.num_generated_tokens if delta else 0,
        first_token_seconds=total_seconds if first_token_seconds is None else first_token_seconds,
        total_seconds=total_seconds,
        finish_reason=delta.finish_reason if delta else None,
    )
