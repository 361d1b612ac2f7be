"""Facts of every waiting queue, and of the order in which each differs."""

from collections.abc import Callable

import pytest

from common.errors import Overloaded
from common.requests import Request, SamplingParams, StopParams
from coordinator.scheduling.sequence import Sequence
from coordinator.scheduling.waiting_queue import FirstComeQueue, PriorityQueue, WaitingQueue

MakeQueue = Callable[[int], WaitingQueue]
every_queue = pytest.mark.parametrize("make_queue", [FirstComeQueue, PriorityQueue])


def _sequence(handle: int, *, priority: int = 0) -> Sequence:
    request = Request(
        request_id=str(handle),
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(),
        stopping=StopParams(max_tokens=4),
        priority=priority,
    )
    return Sequence(handle, request, max_sequence_len=100, has_priorities=True)


def _leave_in_order(queue: WaitingQueue) -> list[int]:
    """Handles in the order in which they would be admitted; the queue is empty then."""
    order: list[int] = []
    while (sequence := queue.peek()) is not None:
        order.append(sequence.handle)
        queue.remove(sequence)
    return order


@every_queue
def test_the_oldest_is_next(make_queue: MakeQueue):
    """Sequences of one priority leave in the order they came."""
    queue = make_queue(4)
    for handle in (1, 2, 3):
        queue.append(_sequence(handle))
    assert [sequence.handle for sequence in queue] == [1, 2, 3]
    assert _leave_in_order(queue) == [1, 2, 3]
    assert len(queue) == 0


@every_queue
def test_full_queue_refuses(make_queue: MakeQueue):
    """A full queue refuses a new sequence and stays as it was."""
    queue = make_queue(1)
    queue.append(_sequence(1))
    with pytest.raises(Overloaded):
        queue.append(_sequence(2))
    assert _leave_in_order(queue) == [1]


@every_queue
def test_preempted_sequences_stand_before_younger_ones_oldest_first(make_queue: MakeQueue):
    """Preempted ones come back, the oldest first, also over the bound."""
    queue = make_queue(1)
    queue.append(_sequence(9))
    for handle in (5, 4):  # the last running one is preempted first
        queue.return_preempted(_sequence(handle))
    assert len(queue) == 3
    assert [sequence.handle for sequence in queue] == [4, 5, 9]
    assert _leave_in_order(queue) == [4, 5, 9]


@every_queue
def test_any_sequence_can_leave(make_queue: MakeQueue):
    """One in the middle, new or preempted, leaves the others in their order."""
    queue = make_queue(4)
    fresh = [_sequence(handle) for handle in (7, 8, 9)]
    for sequence in fresh:
        queue.append(sequence)
    preempted = _sequence(3)
    queue.return_preempted(preempted)
    queue.remove(fresh[1])
    queue.remove(preempted)
    assert _leave_in_order(queue) == [7, 9]


@every_queue
def test_empty_queue_has_no_next(make_queue: MakeQueue):
    """Nobody is next in an empty queue."""
    assert make_queue(1).peek() is None


def test_priority_goes_before_arrival():
    """The smallest priority leaves first, and of equal ones the oldest, preempted or not."""
    queue = PriorityQueue(8)
    for handle, priority in ((1, 5), (2, 0), (3, -1), (4, 0)):
        queue.append(_sequence(handle, priority=priority))
    queue.return_preempted(_sequence(0, priority=5))
    assert _leave_in_order(queue) == [3, 2, 4, 0, 1]


def test_first_come_queue_ignores_priority():
    """First come, first served, however urgent."""
    queue = FirstComeQueue(4)
    queue.append(_sequence(1, priority=5))
    queue.append(_sequence(2, priority=-5))
    assert _leave_in_order(queue) == [1, 2]
