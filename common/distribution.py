"""How often values fell between given bounds: the numbers behind a histogram. Knows no names.

Written by one thread and read by any: a reader may miss the newest value, but never sees a sum of
counts that disagrees with the counts.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """Counts of values by bound, each count of those at most the bound and above the one before.

    bounds ascend; what lies above the last one is counted too. total is the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def num_values(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def up_to(self, largest: float) -> "Distribution":
        """The same without the bounds above a value that no counted one can exceed."""
        kept = Distribution([bound for bound in self.bounds if bound <= largest])
        num_kept = len(kept.bounds)
        kept.counts = [*self.counts[:num_kept], sum(self.counts[num_kept:])]
        kept.total = self.total
        return kept


def one_two_five(largest: int) -> tuple[int, ...]:
    """The bounds 1, 2, 5, 10, 20, 50 and so on, none above the largest."""
    bounds: list[int] = []
    decade = 1
    while decade <= largest:
        bounds += [step * decade for step in (1, 2, 5) if step * decade <= largest]
        decade *= 10
    return tuple(bounds)
