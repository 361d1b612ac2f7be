"""The stage update_states: apply a validated step to the request states."""

import numpy as np

from common.step import Ragged, SchedulerOutput
from worker_service.batch.input_batch import ScheduledRows
from worker_service.batch.request_states import RequestStates
from worker_service.runner.token_feedback import TokenFeedback
from worker_service.sampling.sampling_states import SamplingStates


def update_states(
    output: SchedulerOutput,
    *,
    new_token_ids: Ragged,
    states: RequestStates,
    sampling: SamplingStates,
    feedback: TokenFeedback,
) -> ScheduledRows:
    """Drop, add and extend requests, count the step's tokens as computed, and return its rows.

    new_token_ids: what each cached row appends, also where its own are not the ones that count.
    Drops come first: a handle preempted earlier may come back in the same step.
    """
    for handle in (*output.finished_handles.tolist(), *output.preempted_handles.tolist()):
        states.remove(handle)
    new_slots: list[int] = []
    for request in output.new_requests:
        slot = states.add(request)
        sampling.replace(slot, request.sampling)
        feedback.forget(slot)
        new_slots.append(slot)
    cached = output.cached_requests
    cached_slots = states.slots(cached.handles)
    states.extend(cached_slots, token_ids=new_token_ids, block_ids=cached.new_block_ids[0])
    handles, slots = cached.handles, cached_slots
    if new_slots:
        new_handles = np.array([request.handle for request in output.new_requests], dtype=np.uint64)
        handles = np.concatenate([new_handles, handles])
        slots = np.concatenate([np.array(new_slots, dtype=np.int64), slots])
    rows = ScheduledRows(
        handles=handles,
        slots=slots,
        num_computed=states.num_computed[slots],
        num_scheduled=output.num_scheduled_tokens,
    )
    states.advance(slots, output.num_scheduled_tokens)
    return rows
