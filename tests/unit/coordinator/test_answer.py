"""An answer is written as it comes and measured from the question on."""

from collections.abc import Iterator

import pytest

from common.requests import FinishReason
from coordinator.answer import write_answer
from coordinator.engine.generation import TextDelta
from tests.fakes.manual_clock import ManualClock


def deltas(clock: ManualClock) -> Iterator[TextDelta]:
    """Two tokens: one after 2 s, whose text is held back, and one 0.5 s later with all the text."""
    clock.advance(2.0)
    yield TextDelta(text="", token_ids=(7,), num_prompt_tokens=0, num_generated_tokens=1)
    clock.advance(0.5)
    yield TextDelta(
        text="Paris",
        token_ids=(8,),
        num_prompt_tokens=5,
        num_generated_tokens=2,
        finish_reason=FinishReason.STOP,
    )


def test_writes_and_measures():
    """Text is written in order; the first token counts, not the first text."""
    clock, written = ManualClock(), []
    stats = write_answer(deltas(clock), write=written.append, clock=clock)
    assert "".join(written) == "Paris"
    assert (stats.num_prompt_tokens, stats.num_generated_tokens) == (5, 2)
    assert (stats.first_token_seconds, stats.total_seconds) == (2.0, 2.5)
    assert stats.tokens_per_second == pytest.approx(2.0)
    assert str(stats) == (
        "5 prompt tokens, 2 generated (ended by: stop), first token after 2000 ms, 2.0 tokens/s"
    )


def test_empty_answer_has_no_rate():
    """Without a token there is no rate and no reason, and nothing fails."""
    stats = write_answer([], write=str, clock=ManualClock())
    assert stats.tokens_per_second == 0.0
    assert stats.finish_reason is None
