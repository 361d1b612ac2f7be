"""Steps written by hand for tests of one worker."""

import numpy as np

from common.requests import SamplingParams
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId
from common.trace_context import TraceContext

# Not the first one, so that there is an earlier coordinator to refuse.
EPOCH = 2
GENERATION = 1


def step_id(step: int, *, epoch: int = EPOCH, generation: int = GENERATION) -> StepId:
    """A step of the generation that tests begin."""
    return StepId(epoch=epoch, generation=generation, step=step)


def cached_step(step: int, *, base_step: int | None = None) -> SchedulerOutput:
    """A step of one cached request, handle 7, with one token, planned on the step before it."""
    return SchedulerOutput(
        step_id=step_id(step),
        base_step=step - 1 if base_step is None else base_step,
        cached_requests=CachedRequests(
            handles=np.array([7], dtype=np.uint64),
            num_computed_tokens=np.array([step - 1], dtype=np.int32),
            new_block_ids=(Ragged.from_rows([[]]),),
            new_token_ids=Ragged.from_rows([[1]]),
            token_source_steps=np.zeros(1, dtype=np.uint64),
        ),
        num_scheduled_tokens=np.ones(1, dtype=np.int32),
    )


def digest_step(step: int) -> SchedulerOutput:
    """A step without tokens that asks for the state digest."""
    return SchedulerOutput(step_id=step_id(step), base_step=step - 1, want_state_digest=True)


def new_request(handle: int, trace: TraceContext | None = None) -> NewRequest:
    """A request of one token."""
    return NewRequest(
        handle=handle,
        token_ids=np.array([1], dtype=np.int32),
        num_prompt_tokens=1,
        sampling=SamplingParams(),
        block_ids=(np.array([1], dtype=np.int32),),
        num_computed_tokens=0,
        trace=trace,
    )
