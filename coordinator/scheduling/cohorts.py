"""Groups of running sequences that take turns, so that every pipeline stage has a step to work on.

A cohort has at most one step in flight, so its sequences never move or run twice while one is.
Knows sizes and turns; not tokens, blocks or budgets.
"""

from coordinator.scheduling.sequence import Sequence


class Cohorts:
    """num_cohorts groups of sequences, each in order of arrival."""

    def __init__(self, num_cohorts: int) -> None:
        self._members: list[dict[int, Sequence]] = [{} for _ in range(num_cohorts)]
        self._is_in_flight = [False] * num_cohorts
        self._last_turn = num_cohorts - 1

    def idle_in_turn(self) -> list[int]:
        """Cohorts without a step in flight, the one whose turn it is first."""
        count = len(self._members)
        turns = [(self._last_turn + 1 + offset) % count for offset in range(count)]
        return [cohort for cohort in turns if not self._is_in_flight[cohort]]

    def start_step(self, cohort: int) -> None:
        """Note that a step of this cohort is in flight; the next turn is another's."""
        assert not self._is_in_flight[cohort], f"cohort {cohort} has a step in flight already"
        self._is_in_flight[cohort] = True
        self._last_turn = cohort

    def end_step(self, cohort: int) -> None:
        """Note that the step of this cohort is committed."""
        assert self._is_in_flight[cohort], f"cohort {cohort} has no step in flight"
        self._is_in_flight[cohort] = False

    def members(self, cohort: int) -> list[Sequence]:
        """Its sequences in order of arrival, as a copy."""
        return list(self._members[cohort].values())

    def size(self, cohort: int) -> int:
        """How many sequences it has."""
        return len(self._members[cohort])

    def fair_size(self, num_sequences: int) -> int:
        """The most sequences a cohort has when num_sequences are spread evenly."""
        return -(-num_sequences // len(self._members))

    def join(self, sequence: Sequence, cohort: int) -> None:
        """Put a sequence that is younger than all running ones into a cohort."""
        sequence.cohort = cohort
        self._members[cohort][sequence.handle] = sequence

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of its cohort."""
        del self._members[sequence.cohort][sequence.handle]

    def even_out(self, cohort: int) -> None:
        """Move the youngest members of an idle cohort to smaller ones, down to its fair size.

        Every cohort does so at its turn, so one that ran dry fills up within a round.
        """
        fair_size = self.fair_size(sum(map(len, self._members)))
        while self.size(cohort) > fair_size:
            _, sequence = self._members[cohort].popitem()
            smallest = min(range(len(self._members)), key=self.size)
            self.join(sequence, smallest)
            self._sort(smallest)

    def _sort(self, cohort: int) -> None:
        self._members[cohort] = dict(sorted(self._members[cohort].items()))
