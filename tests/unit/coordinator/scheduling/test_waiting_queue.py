"""Facts of the first-come queue."""

import pytest

from common.errors import Overloaded
from common.requests import Request, SamplingParams, StopParams
from coordinator.scheduling.sequence import Sequence
from coordinator.scheduling.waiting_queue import FirstComeQueue


def _sequence(handle: int) -> Sequence:
    request = Request(
        request_id=str(handle),
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(),
        stopping=StopParams(max_tokens=4),
    )
    return Sequence(handle, request, max_sequence_len=100)


def test_the_oldest_is_next():
    """Sequences leave in the order they came."""
    queue = FirstComeQueue(4)
    first, second = _sequence(1), _sequence(2)
    queue.append(first)
    queue.append(second)
    assert queue.peek() is first
    queue.remove(first)
    assert queue.peek() is second


def test_full_queue_refuses():
    """A full queue refuses a new sequence and stays as it was."""
    queue = FirstComeQueue(1)
    queue.append(_sequence(1))
    with pytest.raises(Overloaded):
        queue.append(_sequence(2))
    assert len(queue) == 1


def test_preempted_sequences_stand_before_new_ones_oldest_first():
    """Preempted ones come back, the oldest first, also over the bound."""
    queue = FirstComeQueue(1)
    queue.append(_sequence(9))
    for handle in (5, 4):  # the youngest running one is preempted first
        queue.return_preempted(_sequence(handle))
    order = []
    while (sequence := queue.peek()) is not None:
        order.append(sequence.handle)
        queue.remove(sequence)
    assert order == [4, 5, 9]


def test_empty_queue_has_no_next():
    """Nobody is next in an empty queue."""
    assert FirstComeQueue(1).peek() is None
