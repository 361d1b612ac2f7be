"""How many draft tokens a sequence may have, from what became of its drafts so far.

A draft that is rejected cost a row of the step's computation for nothing, and what it took to propose
it. So the limit moves halfway towards one more than was accepted where a draft was rejected, and
halfway towards the most where none was. A sequence whose drafts were wrong several times on end has
none for a while, longer each time, and then one, so that it is noticed when it becomes predictable.
"""

FAILURES_BEFORE_PAUSE = 3
LONGEST_PAUSE = 16
"""Samples without drafts, before another one is tried."""


class DraftLimit:
    """The limit of one sequence."""

    __slots__ = ("_estimate", "_most", "_num_failures", "_pause")

    def __init__(self, most: int) -> None:
        """Start with the most, which is 0 where a sequence shall have none."""
        self._most = most
        self._estimate = float(most)
        self._num_failures = 0
        self._pause = 0

    def next(self) -> int:
        """Most drafts the sequence may have behind its next sample; asked once for each."""
        if self._pause:
            self._pause -= 1
            return 0
        return round(self._estimate)

    def note(self, *, num_drafts: int, num_accepted: int) -> None:
        """Learn that of so many drafts, at least one, the first num_accepted were right."""
        target = self._most if num_accepted == num_drafts else num_accepted + 1
        self._estimate = max(1.0, (self._estimate + target) / 2)
        if num_accepted:
            self._num_failures = self._pause = 0
            return
        self._num_failures += 1
        if self._num_failures >= FAILURES_BEFORE_PAUSE:
            doublings = self._num_failures - FAILURES_BEFORE_PAUSE + 1
            self._pause = min(1 << doublings, LONGEST_PAUSE)
