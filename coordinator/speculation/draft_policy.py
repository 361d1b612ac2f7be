"""How many draft tokens a sequence may have, from what became of its drafts so far.

A draft that is rejected cost a row of the step's computation for nothing. So the limit moves halfway
towards one more than was accepted where a draft was rejected, and halfway towards the most where none
was; it stays at 1 at least, so that a sequence that becomes predictable again is noticed.
"""


class DraftLimit:
    """The limit of one sequence."""

    __slots__ = ("_estimate", "_most")

    def __init__(self, most: int) -> None:
        """Start with the most, which is 0 where a sequence shall have none."""
        self._most = most
        self._estimate = float(most)

    @property
    def num_drafts(self) -> int:
        """Most drafts it may have now."""
        return round(self._estimate)

    def note(self, *, num_drafts: int, num_accepted: int) -> None:
        """Learn that of so many drafts, at least one, the first num_accepted were right."""
        target = self._most if num_accepted == num_drafts else num_accepted + 1
        self._estimate = max(1.0, (self._estimate + target) / 2)
