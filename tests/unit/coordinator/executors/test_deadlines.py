"""Step deadlines on made-up timings: floors, the fit, and what is not called a hang."""

import numpy as np
import pytest

from common.requests import SamplingParams
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId, StepTimings
from coordinator.executors.deadlines import (
    DeadlineRules,
    StepDeadlines,
    compute_seconds,
    context_of,
)

FAST_DECODE = 0.02
SECONDS_PER_PREFILL_TOKEN = 0.01


def observe_decodes(deadlines: StepDeadlines, count: int, *, num_rows: int = 1) -> None:
    """So many fast decodes of sequences that grow."""
    for position in range(count):
        deadlines.observe(
            num_tokens=num_rows,
            context=num_rows * (100 + position),
            num_rows=num_rows,
            seconds=FAST_DECODE,
        )


def decode_deadline(deadlines: StepDeadlines) -> float:
    """Deadline of a decode of one sequence."""
    return deadlines.deadline(num_tokens=1, context=300, num_rows=1)


def test_first_steps_have_a_higher_floor():
    """Ten seconds for whatever is fast, and two once a hundred steps were seen."""
    deadlines = StepDeadlines()
    observe_decodes(deadlines, 99)
    assert decode_deadline(deadlines) == 10.0
    observe_decodes(deadlines, 1)
    assert decode_deadline(deadlines) == 2.0


def test_first_step_of_a_shape_has_ten_times_as_long():
    """Tokens and rows are rounded up to powers of two: five tokens are the shape of eight."""
    deadlines = StepDeadlines()
    observe_decodes(deadlines, 200)
    five_tokens = {"num_tokens": 5, "context": 0, "num_rows": 1}
    assert deadlines.deadline(**five_tokens) >= 20.0
    deadlines.observe(num_tokens=8, context=0, num_rows=1, seconds=0.02)
    assert deadlines.deadline(**five_tokens) == 2.0
    assert deadlines.deadline(num_tokens=5, context=0, num_rows=5) >= 20.0
    assert deadlines.deadline(num_tokens=9, context=0, num_rows=1) >= 20.0


def test_first_step_after_a_rebuild_has_ten_times_as_long():
    """Until one step of the new generation was observed."""
    deadlines = StepDeadlines()
    observe_decodes(deadlines, 200)
    deadlines.note_rebuild()
    assert decode_deadline(deadlines) == 20.0
    observe_decodes(deadlines, 1)
    assert decode_deadline(deadlines) == 2.0


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("num_tokens", [64, 1024])
def test_slow_prefills_after_fast_decodes_are_no_hang(num_rows, num_tokens):
    """Neither the first prefill, whose shape is new, nor the second, once there was a first."""
    deadlines = StepDeadlines()
    observe_decodes(deadlines, 200, num_rows=num_rows)
    prefill = {"num_tokens": num_tokens, "context": 0, "num_rows": 1}
    seconds = num_tokens * SECONDS_PER_PREFILL_TOKEN
    assert deadlines.deadline(**prefill) > seconds
    deadlines.observe(**prefill, seconds=seconds)
    assert deadlines.deadline(**prefill) > 2 * seconds
    observe_decodes(deadlines, 5000, num_rows=num_rows)
    assert deadlines.deadline(**prefill) > 2 * seconds


def test_prefill_of_another_size_is_foreseen():
    """Seconds grow with the tokens: half the tokens of a known prefill need no allowance."""
    deadlines = StepDeadlines()
    observe_decodes(deadlines, 200)
    for num_tokens in (1024, 512, 512):
        deadlines.observe(
            num_tokens=num_tokens,
            context=0,
            num_rows=1,
            seconds=num_tokens * SECONDS_PER_PREFILL_TOKEN,
        )
    expected = 10 * 512 * SECONDS_PER_PREFILL_TOKEN
    assert deadlines.deadline(num_tokens=512, context=0, num_rows=1) == pytest.approx(
        expected, rel=0.1
    )


def test_long_contexts_have_longer():
    """A decode over a context never seen before gets what its growth so far foretells."""
    deadlines = StepDeadlines()
    for context in range(0, 100_000, 500):
        deadlines.observe(num_tokens=1, context=context, num_rows=1, seconds=0.01 + context * 1e-5)
    at_a_million = deadlines.deadline(num_tokens=1, context=1_000_000, num_rows=1)
    assert at_a_million == pytest.approx(10 * (0.01 + 10.0), rel=0.01)


def test_noise_never_promises_that_more_work_takes_less_time():
    """Decodes that got faster while the context grew do not shorten the deadline of longer ones."""
    deadlines = StepDeadlines()
    for position in range(200):
        deadlines.observe(num_tokens=1, context=position, num_rows=1, seconds=1.0 - position / 400)
    long = deadlines.deadline(num_tokens=1, context=100_000, num_rows=1)
    assert long == pytest.approx(10 * 0.75, rel=0.05)


def test_rules_are_parameters():
    """Whoever tests hangs need not wait for the floors."""
    rules = DeadlineRules(first_floor=0.2, floor=0.1, num_first_steps=1, unusual_factor=1.0)
    deadlines = StepDeadlines(rules)
    assert decode_deadline(deadlines) == 0.2
    deadlines.observe(num_tokens=1, context=0, num_rows=1, seconds=0.001)
    assert decode_deadline(deadlines) == 0.1


def test_context_counts_new_and_cached_rows():
    """A prefix found in the cache counts like tokens computed by former steps."""
    new = NewRequest(
        handle=1,
        token_ids=np.arange(9, dtype=np.int32),
        num_prompt_tokens=9,
        sampling=SamplingParams(),
        block_ids=(np.array([1], dtype=np.int32),),
        num_computed_tokens=4,
    )
    cached = CachedRequests(
        handles=np.array([2, 3], dtype=np.uint64),
        num_computed_tokens=np.array([10, 20], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[], []]),),
        new_token_ids=Ragged.from_rows([[], []]),
        token_source_steps=np.zeros(2, dtype=np.uint64),
    )
    output = SchedulerOutput(
        step_id=StepId(epoch=1, generation=1, step=2),
        base_step=1,
        new_requests=(new,),
        cached_requests=cached,
        num_scheduled_tokens=np.array([5, 1, 1], dtype=np.int32),
    )
    assert context_of(output) == 34


def test_seconds_of_compute():
    """The wait for the previous stage lies before the start; no timings are no time."""
    timings = StepTimings(compute_start_ns=10**9, compute_end_ns=3 * 10**9, wait_input_ns=10**8)
    assert compute_seconds(timings) == 2.0
    assert compute_seconds(StepTimings()) == 0.0
