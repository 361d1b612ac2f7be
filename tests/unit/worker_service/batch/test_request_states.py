"""Slots of live requests."""

import numpy as np

from common.requests import SamplingParams
from common.step import NewRequest, Ragged
from worker_service.batch.request_states import RequestStates


def new_request(handle: int, *, num_tokens: int = 3) -> NewRequest:
    """A request with tokens 0, 1, ... and one block named like its handle."""
    return NewRequest(
        handle=handle,
        token_ids=np.arange(num_tokens, dtype=np.int32),
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(),
        block_ids=(np.array([handle], np.int32),),
        num_computed_tokens=0,
    )


def make_states(num_slots: int = 2) -> RequestStates:
    """States of sequences up to 8 tokens in blocks of 4."""
    return RequestStates(num_slots=num_slots, max_model_len=8, block_size=4)


def test_a_freed_slot_is_taken_again_and_the_others_stay():
    """Nothing is condensed: only the freed slot changes its owner."""
    states = make_states(3)
    slots = [states.add(new_request(handle)) for handle in (10, 11, 12)]
    states.remove(11)
    assert states.add(new_request(13)) == slots[1]
    assert [states.slot(10), states.slot(12)] == [slots[0], slots[2]]
    assert states.handles == (10, 12, 13)


def test_slots_grow_past_the_first_size():
    """More live requests than slots grow the arrays and keep what they hold."""
    states = make_states(1)
    for handle in range(5):
        states.add(new_request(handle, num_tokens=handle + 1))
    slots = states.slots(np.arange(5, dtype=np.uint64))
    assert states.tokens.lengths[slots].tolist() == [1, 2, 3, 4, 5]
    assert states.num_slots == 8


def test_extend_and_advance_touch_only_the_given_slots():
    """Tokens, blocks and counts of another request stay."""
    states = make_states()
    states.add(new_request(1))
    states.add(new_request(2))
    slots = states.slots(np.array([2], np.uint64))
    states.extend(slots, token_ids=Ragged.from_rows([[9]]), block_ids=(Ragged.from_rows([[5]]),))
    states.advance(slots, np.array([4], np.int32))
    assert states.tokens.row(states.slot(2)).tolist() == [0, 1, 2, 9]
    assert states.blocks.row(states.slot(2)).tolist() == [2, 5]
    assert states.num_computed[states.slot(2)] == 4
    assert states.tokens.row(states.slot(1)).tolist() == [0, 1, 2]
    assert states.num_computed[states.slot(1)] == 0


def test_clear_forgets_everything():
    """After clearing no handle is known and every slot is free."""
    states = make_states()
    states.add(new_request(1))
    states.clear()
    assert not states.knows(1)
    assert [states.add(new_request(handle)) for handle in (5, 6)] == [0, 1]
