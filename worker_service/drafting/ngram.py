"""The n-gram drafter: what followed the last tokens when they stood in the sequence before.

Prompt look-up decoding: Saxena, https://github.com/apoorvumang/prompt-lookup-decoding. It computes
nothing with a model, so a draft costs a search in the sequence's own tokens.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from common.step import Int32s, Ragged
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import SampledRows
from worker_service.drafting.drafter_memory import DrafterMemory

MOST_TOKENS_SEARCHED = 8192
"""The search goes so far back, which bounds what it costs."""


class NgramDrafter:
    """Looks the last prompt_lookup_max tokens up in the tokens before them, then ever fewer."""

    memory = DrafterMemory()

    def __init__(
        self, states: RequestStates, *, prompt_lookup_min: int, prompt_lookup_max: int
    ) -> None:
        self._states = states
        self._shortest = prompt_lookup_min
        self._longest = prompt_lookup_max

    def initialize_kv_cache(self, num_blocks: int) -> int:
        """Do nothing: there are no keys and values."""
        return 0

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Do nothing: all that counts is in the token store."""

    def follow(self, batch: InputBatch, hidden_TD: Tensor) -> None:
        """Do nothing: nothing is computed along."""

    def propose(self, rows: SampledRows) -> Ragged:
        """What followed the latest earlier occurrence of each row's longest n-gram that has one."""
        tokens = self._states.tokens.values
        return Ragged.from_rows(
            [
                find_continuation(
                    tokens[slot, max(0, num_known - MOST_TOKENS_SEARCHED) : num_known],
                    shortest=self._shortest,
                    longest=self._longest,
                    most=num_wanted,
                )
                for slot, num_known, num_wanted in zip(
                    rows.slots.tolist(),
                    rows.num_known.tolist(),
                    rows.num_wanted.tolist(),
                    strict=True,
                )
            ]
        )

    def clear(self) -> None:
        """Do nothing: there is nothing to forget."""


def find_continuation(token_ids: Int32s, *, shortest: int, longest: int, most: int) -> Int32s:
    """At most `most` tokens after an earlier occurrence of the longest suffix that has one.

    Suffixes have `longest` down to `shortest` tokens. Of the occurrences the latest counts that is
    followed by `most` tokens, or else the first, which is followed by the most.
    """
    count = len(token_ids)
    if most < 1 or count <= shortest:
        return token_ids[:0]
    # The token before an n-gram's end is where its shortest suffix ends: every longer one ends there.
    width = shortest
    windows = sliding_window_view(token_ids[:-1], width)
    ends = np.flatnonzero((windows == token_ids[count - width :]).all(axis=1)) + width
    for length in range(width + 1, min(longest, count - 1) + 1):
        could = ends[ends >= length]
        longer = could[token_ids[could - length] == token_ids[count - length]]
        if not len(longer):
            break
        ends = longer
    if not len(ends):
        return token_ids[:0]
    whole = ends[ends + most <= count]
    start = int(whole[-1] if len(whole) else ends[0])
    return token_ids[start : start + most]
