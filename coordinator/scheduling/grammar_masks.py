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
        self._sequences: list[Sequence] = []

    @property
    def is_one_due(self) -> bool:
        """Whether a planned step waits for its mask."""
        return self._output is not None

    def expect(self, output: SchedulerOutput, sampling: Iterable[Sequence]) -> None:
        """Note a planned step whose mask follows, with the sequences that sample in it, in row order."""
        assert self._output is None, "a step waits for its mask already"
        self._output = output
        self._sequences = [each for each in sampling if each.matcher is not None]

    def forget(self) -> None:
        """No step waits any more."""
        self._output, self._sequences = None, []

    def take(self) -> tuple[SchedulerOutput, GrammarMask] | None:
        """The step that waits and its mask, once every token before those it draws is known."""
        output = self._output
        if output is None or any(each.num_placeholders > 1 for each in self._living()):
            return None
        mask = _mask(self._living())
        self.forget()
        return output, mask

    def _living(self) -> list[Sequence]:
        """What a sequence that has ended draws is dropped, so it may draw anything."""
        return [each for each in self._sequences if each.state is not SequenceState.FINISHED]


def _mask(sequences: list[Sequence]) -> GrammarMask:
    rows = [each.matcher.masks_along() for each in sequences if each.matcher is not None]
    return GrammarMask(
        handles=np.array([each.handle for each in sequences], dtype=np.uint64),
        num_positions=np.array([len(masks) for masks in rows], dtype=np.int32),
        bits=np.concatenate(rows) if rows else np.empty((0, 0), dtype=np.int32),
    )
