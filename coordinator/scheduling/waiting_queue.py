"""The order in which waiting sequences are admitted, behind one protocol."""

from typing import Protocol

from common.errors import Overloaded
from coordinator.scheduling.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences that wait for admission, bounded for new ones."""

    def __len__(self) -> int:
        """Sequences waiting."""
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

    def append(self, sequence: Sequence) -> None:
        """Take a new sequence at the back."""
        if len(self) >= self._max_waiting:
            raise Overloaded(f"{len(self)} requests are waiting already; try again later")
        self._fresh[sequence.handle] = sequence

    def return_preempted(self, sequence: Sequence) -> None:
        """Take a preempted sequence at the front.

        The victim is always the youngest running one, so each is older than those before it.
        """
        self._preempted[sequence.handle] = sequence

    def peek(self) -> Sequence | None:
        """The oldest sequence."""
        if self._preempted:
            return next(reversed(self._preempted.values()))
        return next(iter(self._fresh.values()), None)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the part it stands in."""
        part = self._preempted if sequence.handle in self._preempted else self._fresh
        del part[sequence.handle]
