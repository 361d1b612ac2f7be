"""Values of a step."""

import numpy as np

from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    NewRequest,
    Phase,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
)


def test_ragged_rows():
    """Rows of any kind of ints, empty ones too, are packed and read back."""
    ragged = Ragged.from_rows([[1, 2], (), np.array([3], dtype=np.int32)])
    assert ragged.num_rows == 3
    assert [ragged.row(index).tolist() for index in range(3)] == [[1, 2], [], [3]]
    assert (ragged.values.dtype, ragged.offsets.dtype) == (np.int32, np.uint32)


def test_ragged_without_rows():
    """No rows have one offset and no values."""
    empty = Ragged.from_rows([])
    assert (empty.num_rows, empty.offsets.tolist(), len(empty.values)) == (0, [0], 0)


def test_step_counts():
    """Rows and tokens of a step follow from num_scheduled_tokens; by default there are none."""
    step_id = StepId(epoch=1, generation=1, step=1)
    empty = SchedulerOutput(step_id=step_id, base_step=0)
    assert (empty.num_rows, empty.total_num_scheduled_tokens) == (0, 0)
    full = SchedulerOutput(
        step_id=step_id, base_step=0, num_scheduled_tokens=np.array([3, 1], dtype=np.int32)
    )
    assert (full.num_rows, full.total_num_scheduled_tokens) == (2, 4)


def test_prefill_tokens_are_those_of_rows_without_a_sampled_token():
    """New rows and the next chunk of a prompt count, a row that brings the token sampled last does not."""
    new = NewRequest(
        handle=1,
        token_ids=np.arange(5, dtype=np.int32),
        num_prompt_tokens=5,
        sampling=SamplingParams(),
        block_ids=(np.array([1], dtype=np.int32),),
        num_computed_tokens=2,
    )
    cached = CachedRequests(
        handles=np.array([2, 3, 4], dtype=np.uint64),
        num_computed_tokens=np.array([8, 9, 9], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[], [], []]),),
        new_token_ids=Ragged.from_rows([[], [7], []]),
        token_source_steps=np.array([0, 0, 1], dtype=np.uint64),
    )
    output = SchedulerOutput(
        step_id=StepId(epoch=1, generation=1, step=2),
        base_step=1,
        new_requests=(new,),
        cached_requests=cached,
        num_scheduled_tokens=np.array([3, 16, 1, 1], dtype=np.int32),
    )
    assert output.num_prefill_tokens == 3 + 16


def test_order_of_step_ids():
    """Epoch counts before generation, generation before step."""
    assert StepId(epoch=1, generation=9, step=9) < StepId(epoch=2, generation=1, step=1)
    assert StepId(epoch=2, generation=1, step=9) < StepId(epoch=2, generation=2, step=1)


def test_key_reads_well():
    """A key prints as an error message needs it."""
    key = StepKey(step_id=StepId(epoch=1, generation=2, step=3), phase=Phase.SAMPLE)
    assert str(key) == "step 3 sample (epoch 1, generation 2)"
