"""Groups of running sequences that take turns, so that every pipeline stage has a step to work on.

A cohort has few steps in flight: one, or two where a step is planned before the tokens of the one
before it are known. Knows sizes and turns; not tokens, blocks or budgets.
"""

import math
from collections.abc import Iterable

from coordinator.scheduling.sequence import Sequence


class Cohorts:
    """num_cohorts groups of sequences, each in order of rank, with most_steps in flight at once."""

    def __init__(self, num_cohorts: int, *, most_steps: int = 1) -> None:
        self._members: list[dict[int, Sequence]] = [{} for _ in range(num_cohorts)]
        self._num_steps = [0] * num_cohorts
        self._most_steps = most_steps
        self._last_turn = num_cohorts - 1

    def ready_in_turn(self) -> list[int]:
        """Cohorts that may have one more step in flight, the one whose turn it is first."""
        count = len(self._members)
        turns = [(self._last_turn + 1 + offset) % count for offset in range(count)]
        return [cohort for cohort in turns if self._num_steps[cohort] < self._most_steps]

    def num_idle_beside(self, cohort: int) -> int:
        """Cohorts without a step in flight, this one not counted."""
        return self._num_steps.count(0) - (not self._num_steps[cohort])

    def start_step(self, cohort: int) -> None:
        """Note that a step of this cohort is in flight; the next turn is another's."""
        assert self._num_steps[cohort] < self._most_steps, (
            f"cohort {cohort} has its steps in flight"
        )
        self._num_steps[cohort] += 1
        self._last_turn = cohort

    def end_step(self, cohort: int) -> None:
        """Note that the oldest step of this cohort is committed."""
        assert self._num_steps[cohort], f"cohort {cohort} has no step in flight"
        self._num_steps[cohort] -= 1

    def members(self, cohort: int) -> list[Sequence]:
        """Its sequences in order of rank, as a copy."""
        return list(self._members[cohort].values())

    def size(self, cohort: int) -> int:
        """How many sequences it has."""
        return len(self._members[cohort])

    def fair_size(self, num_sequences: int) -> int:
        """The most sequences a cohort has when num_sequences are spread evenly."""
        return -(-num_sequences // len(self._members))

    def join(self, sequence: Sequence, cohort: int) -> None:
        """Put a sequence into a cohort, at its place."""
        sequence.cohort = cohort
        insert_by_rank(self._members[cohort], sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of its cohort."""
        del self._members[sequence.cohort][sequence.handle]

    def even_out(self, cohort: int) -> None:
        """Move the last members of a cohort to smaller ones, down to its fair size.

        Every cohort does so at its turn, so one that ran dry fills up within a round. A step in
        flight that has a row of theirs stays the former cohort's.
        """
        fair_size = self.fair_size(sum(map(len, self._members)))
        while self.size(cohort) > fair_size:
            _, sequence = self._members[cohort].popitem()
            smallest = min(range(len(self._members)), key=self.size)
            self.join(sequence, smallest)


def insert_by_rank(ordered: dict[int, Sequence], sequence: Sequence) -> None:
    """Put a sequence into a dict by handle that is in order of rank; cheap where it is the last."""
    last = next(reversed(ordered.values()), None)
    ordered[sequence.handle] = sequence
    if last is not None and sequence.rank < last.rank:
        in_order = sorted(ordered.values(), key=lambda member: member.rank)
        ordered.clear()
        ordered.update((member.handle, member) for member in in_order)


def fair_tokens(waiting: Iterable[Sequence], *, num_cohorts: int, most: int) -> float:
    """Tokens of each of num_cohorts that share the waiting ones evenly.

    Infinite where there is nothing to share: one cohort, or enough for steps of `most` tokens in all.
    """
    if num_cohorts == 1:
        return math.inf
    num_tokens = 0
    for sequence in waiting:
        num_tokens += sequence.num_tokens
        if num_tokens >= num_cohorts * most:
            return math.inf
    return num_tokens / num_cohorts
