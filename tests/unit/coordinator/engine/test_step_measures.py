"""Facts of what is counted of steps."""

import pytest

from common.step import StepTimings
from common.worker_api import Rank
from coordinator.engine.step_measures import StepMeasures

FIRST, SECOND = Rank(stage=0), Rank(stage=1)
MS = 1_000_000


def computed(start_ms: int, end_ms: int, *, waited_ms: int = 0) -> StepTimings:
    """A step that a rank computed between these moments of its clock."""
    return StepTimings(
        compute_start_ns=start_ms * MS, compute_end_ns=end_ms * MS, wait_input_ns=waited_ms * MS
    )


def note(measures: StepMeasures, timings: dict[Rank, StepTimings], *, is_last=False) -> None:
    """A step of 4 tokens that took 0.02 s."""
    measures.note_answered(timings, num_tokens=4, seconds=0.02, is_last=is_last)


def test_sizes_and_times_are_counted_by_rank():
    """Every rank has its own seconds of computing and of waiting."""
    measures = StepMeasures()
    note(measures, {FIRST: computed(5, 9), SECOND: computed(1010, 1016, waited_ms=3)})
    assert (measures.num_tokens.total, measures.round_trip.total) == (4, 0.02)
    assert measures.compute[FIRST].total == pytest.approx(0.004)
    assert measures.compute[SECOND].total == pytest.approx(0.006)
    assert measures.input_wait[SECOND].total == pytest.approx(0.003)


def test_a_bubble_is_the_gap_between_steps_while_there_was_work():
    """Gaps are taken on each rank's own clock; overlapping ones count as none."""
    measures = StepMeasures()
    note(measures, {FIRST: computed(0, 4), SECOND: computed(1004, 1010)})
    note(measures, {FIRST: computed(6, 10), SECOND: computed(1010, 1016)})
    note(measures, {FIRST: computed(9, 14), SECOND: computed(1017, 1020)})
    assert measures.bubble_seconds[FIRST] == pytest.approx(0.002)
    assert measures.bubble_seconds[SECOND] == pytest.approx(0.001)


def test_what_follows_the_last_step_in_flight_is_no_bubble():
    """Nobody waits while nothing is asked."""
    measures = StepMeasures()
    note(measures, {FIRST: computed(0, 4)}, is_last=True)
    note(measures, {FIRST: computed(9000, 9004)})
    assert measures.bubble_seconds[FIRST] == 0


def test_clocks_of_two_generations_are_never_compared():
    """A worker that was started anew may have a clock that stands behind or far ahead."""
    measures = StepMeasures()
    note(measures, {FIRST: computed(0, 4)})
    measures.note_generation()
    note(measures, {FIRST: computed(9000, 9004)})
    assert measures.bubble_seconds[FIRST] == 0
