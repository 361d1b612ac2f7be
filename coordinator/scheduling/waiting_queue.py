"""The order in which waiting sequences are admitted, behind one protocol."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from common.errors import Overloaded
from coordinator.scheduling.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences that wait for admission, bounded for new ones."""

    def __len__(self) -> int:
        """Sequences waiting."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Sequences waiting, the one to admit next first."""
        ...

    def append(self, sequence: Sequence) -> None:
        """Take a new sequence; raises Overloaded when the queue is full."""
        ...

    def return_preempted(self, sequence: Sequence) -> None:
        """Take back a sequence that was admitted before; never refuses."""
        ...

    def peek(self) -> Sequence | None:
        """The sequence to admit next, None when nobody waits."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        ...


class FirstComeQueue:
    """First come, first served; preempted sequences stand before all new ones, oldest first."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._preempted: dict[int, Sequence] = {}
        self._fresh: dict[int, Sequence] = {}

    def __len__(self) -> int:
        """Sequences waiting, preempted ones included."""
        return len(self._preempted) + len(self._fresh)

    def __iter__(self) -> Iterator[Sequence]:
        """Oldest first."""
        return chain(reversed(self._preempted.values()), self._fresh.values())

    def append(self, sequence: Sequence) -> None:
        """Take a new sequence at the back."""
        _check_room(len(self), self._max_waiting)
        self._fresh[sequence.handle] = sequence

    def return_preempted(self, sequence: Sequence) -> None:
        """Take a preempted sequence at the front.

        The victim is always the youngest running one, so each is older than those before it.
        """
        self._preempted[sequence.handle] = sequence

    def peek(self) -> Sequence | None:
        """The oldest sequence."""
        return next(iter(self), None)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the part it stands in."""
        part = self._preempted if sequence.handle in self._preempted else self._fresh
        del part[sequence.handle]


class PriorityQueue:
    """The smallest rank first, so by priority and then by arrival, preempted ones like new ones."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._ranks: list[tuple[int, int]] = []
        self._sequence_by_rank: dict[tuple[int, int], Sequence] = {}

    def __len__(self) -> int:
        """Sequences waiting, preempted ones included."""
        return len(self._ranks)

    def __iter__(self) -> Iterator[Sequence]:
        """Smallest rank first."""
        return map(self._sequence_by_rank.__getitem__, self._ranks)

    def append(self, sequence: Sequence) -> None:
        """Take a new sequence at its place."""
        _check_room(len(self), self._max_waiting)
        self.return_preempted(sequence)

    def return_preempted(self, sequence: Sequence) -> None:
        """Take a preempted sequence at its place."""
        insort(self._ranks, sequence.rank)
        self._sequence_by_rank[sequence.rank] = sequence

    def peek(self) -> Sequence | None:
        """The sequence with the smallest rank."""
        return next(iter(self), None)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of its place."""
        del self._sequence_by_rank[sequence.rank]
        del self._ranks[bisect_left(self._ranks, sequence.rank)]


def _check_room(num_waiting: int, max_waiting: int) -> None:
    if num_waiting >= max_waiting:
        raise Overloaded(f"{num_waiting} requests are waiting already; try again later")
