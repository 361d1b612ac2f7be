"""From the rows of a batch to their edits: who asked for what, and what each has seen so far."""

import math

from torch import Tensor

from worker_service.batch.request_states import RequestStates
from worker_service.sampling.custom_processors import CustomProcessors
from worker_service.sampling.processors import PROCESSORS, EditedRow
from worker_service.sampling.sampling_states import SamplingRows

NOTHING_ALLOWED = "the request's constraints allow no token"
NO_NUMBERS = "the request's logits processors leave logits that are not finite numbers"


class LogitEditor:
    """Applies every edit of every row; a batch without any is left alone at no cost."""

    def __init__(self, states: RequestStates, custom: CustomProcessors | None = None) -> None:
        self._states = states
        self._custom = custom or CustomProcessors({})

    def edited_rows(self, rows: SamplingRows) -> list[EditedRow]:
        """The rows with edits."""
        tokens, num_prompt = self._states.tokens.values, self._states.num_prompt
        edited: list[EditedRow] = []
        for row in rows.edited.tolist():
            slot, end = int(rows.slots[row]), int(rows.positions[row])
            start = num_prompt[slot]
            known = tokens[slot, :end]
            known.flags.writeable = False  # custom processors get it
            edited.append(
                EditedRow(
                    row=row,
                    params=rows.params[slot],
                    prompt_ids=known[:start],
                    output_ids=known[start:],
                )
            )
        return edited

    def apply(self, logits_SV: Tensor, rows: list[EditedRow]) -> dict[int, str]:
        """Edit float32 logits in place; the rows that can have no token, with the reason."""
        for processor in PROCESSORS:
            processor.apply(logits_SV, rows)
        failures = self._custom.apply(logits_SV, rows)
        index = [each.row for each in rows]
        largest = logits_SV[index].amax(dim=1).tolist()
        for row, value in zip(index, largest, strict=True):
            if not math.isfinite(value):
                reason = NOTHING_ALLOWED if value == -math.inf else NO_NUMBERS
                failures.setdefault(row, reason)
        return failures
