"""The stage update_states: apply a validated step to the request states."""

import numpy as np

from common.step import Ragged, SchedulerOutput
from worker_service.batch.input_batch import ScheduledRows
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import Drafter
from worker_service.runner.token_feedback import TokenFeedback
from worker_service.sampling.sampling_states import SamplingStates


def update_states(
    output: SchedulerOutput,
    *,
    new_token_ids: Ragged,
    drafts: Ragged,
    states: RequestStates,
    sampling: SamplingStates,
    feedback: TokenFeedback,
    drafter: Drafter,
) -> ScheduledRows:
    """Drop, add and extend requests, count the step's tokens as computed, and return its rows.

    new_token_ids and drafts: what each cached row appends and computes behind that, also where its own
    are not the ones that count: a row computes fewer tokens than were planned where it has fewer
    drafts. Drops come first: a handle preempted earlier may come back in the same step.
    """
    for handle in (*output.finished_handles.tolist(), *output.preempted_handles.tolist()):
        states.remove(handle)
    new_slots: list[int] = []
    for request in output.new_requests:
        slot = states.add(request)
        sampling.replace(slot, request.sampling)
        feedback.forget(slot)
        drafter.begin(slot, num_computed=request.num_computed_tokens)
        new_slots.append(slot)
    cached = output.cached_requests
    cached_slots = states.slots(cached.handles)
    if len(cached_slots):
        states.extend(cached_slots, token_ids=new_token_ids, block_ids=cached.new_block_ids)
        states.put_drafts(cached_slots, drafts)
    num_drafts = drafts.lengths.astype(np.int32)
    num_planned = output.num_scheduled_tokens
    num_scheduled = num_planned.copy()
    is_fed = cached.token_source_steps > 0
    num_scheduled[len(new_slots) :][is_fed] = 1 + num_drafts[is_fed]
    handles, slots = cached.handles, cached_slots
    num_claimed = cached.num_computed_tokens
    if new_slots:
        num_drafts = np.concatenate([np.zeros(len(new_slots), np.int32), num_drafts])
        new_handles = np.array([request.handle for request in output.new_requests], dtype=np.uint64)
        handles = np.concatenate([new_handles, handles])
        slots = np.concatenate([np.array(new_slots, dtype=np.int64), slots])
        num_claimed = np.concatenate([states.num_computed[new_slots], num_claimed])
    rows = ScheduledRows(
        handles=handles,
        slots=slots,
        num_computed=states.num_computed[slots],
        num_scheduled=num_scheduled,
        num_drafts=num_drafts,
        num_wanted=(
            output.num_drafts_wanted if len(output.num_drafts_wanted) else np.zeros_like(num_drafts)
        ),
    )
    states.advance(slots, num_scheduled - num_drafts)
    states.num_room[slots] = num_planned - (num_scheduled - num_drafts)
    states.num_planned[slots] = num_claimed + num_planned
    return rows
