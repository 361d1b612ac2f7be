"""Valid messages of the wire, for tests that break them field by field."""

from stepwire.v1 import step_pb2

from common.codecs import step_codec
from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    NewRequest,
    Ragged,
    SchedulerOutput,
    StepId,
)
from tests.fakes.wire_values import column


def a_step() -> step_pb2.SchedulerOutput:
    """A valid step of one new and two cached requests over one KV cache group."""
    return step_codec.encode_scheduler_output(
        SchedulerOutput(
            step_id=StepId(epoch=1, generation=2, step=3),
            base_step=2,
            new_requests=(
                NewRequest(
                    handle=10,
                    token_ids=column([1, 2, 3], "<i4"),
                    num_prompt_tokens=3,
                    sampling=SamplingParams(seed=7),
                    block_ids=(column([4], "<i4"),),
                    num_computed_tokens=0,
                ),
            ),
            cached_requests=CachedRequests(
                handles=column([11, 12], "<u8"),
                num_computed_tokens=column([5, 6], "<i4"),
                new_block_ids=(Ragged.from_rows([[], [9]]),),
                new_token_ids=Ragged.from_rows([[1], [2]]),
                token_source_steps=column([0, 2], "<u8"),
            ),
            num_scheduled_tokens=column([3, 1, 1], "<i4"),
            finished_handles=column([1, 2], "<u8"),
            preempted_handles=column([3], "<u8"),
        )
    )


def uint32s(*values: int) -> bytes:
    """The bytes of an offsets column."""
    return column(list(values), "<u4").tobytes()


def uint64s(*values: int) -> bytes:
    """The bytes of a handles column."""
    return column(list(values), "<u8").tobytes()


def a_key() -> step_pb2.StepKey:
    """The execute phase of step 1."""
    return step_pb2.StepKey(epoch=1, generation=1, step=1, phase=step_pb2.PHASE_EXECUTE)
