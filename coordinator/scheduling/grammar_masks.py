"""The step whose sample phase waits for its grammar mask: at most one, and nothing is planned behind it.

A row's mask depends on all tokens before the one it draws, so it can be made once the steps that sample
those are committed; the step's forward pass runs meanwhile.
"""

from collections.abc import Iterable

import numpy as np

from common.step import GrammarMask, SchedulerOutput
from coordinator.scheduling.sequence import Sequence, SequenceState


class GrammarMasks:
    """Knows which planned step has no mask yet."""

    def __init__(self) -> None:
        self._output: SchedulerOutput | None = None
        self._rows: list[tuple[Sequence, int]] = []

    @property
    def is_one_due(self) -> bool:
        """Whether a planned step waits for its mask."""
        return self._output is not None

    def expect(self, output: SchedulerOutput, sampling: Iterable[tuple[Sequence, int]]) -> None:
        """Note a planned step whose mask follows, with the sequences that sample in it, in row order.

        Each comes with the most drafts that the step checks of it.
        """
        assert self._output is None, "a step waits for its mask already"
        self._output = output
        self._rows = [row for row in sampling if row[0].matcher is not None]

    def forget(self) -> None:
        """No step waits any more."""
        self._output, self._rows = None, []

    def take(self) -> tuple[SchedulerOutput, GrammarMask] | None:
        """The step that waits and its mask, once every token before those it draws is known."""
        output = self._output
        if output is None:
            return None
        if any(each.num_placeholders > 1 + num_drafts for each, num_drafts in self._living()):
            return None
        mask = _mask(self._living())
        self.forget()
        return output, mask

    def _living(self) -> list[tuple[Sequence, int]]:
        """What a sequence that has ended draws is dropped, so it may draw anything."""
        return [row for row in self._rows if row[0].state is not SequenceState.FINISHED]


def _mask(rows: list[tuple[Sequence, int]]) -> GrammarMask:
    masks = [
        each.matcher.masks_along(each.drafts[:num_drafts])
        for each, num_drafts in rows
        if each.matcher is not None
    ]
    return GrammarMask(
        handles=np.array([each.handle for each, _ in rows], dtype=np.uint64),
        num_positions=np.array([len(each) for each in masks], dtype=np.int32),
        bits=np.concatenate(masks) if masks else np.empty((0, 0), dtype=np.int32),
    )
