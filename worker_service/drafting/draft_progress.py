"""How far a draft model has computed each sequence, and which of its own guesses it has computed."""

import numpy as np

from common.step import Int32s, Int64s
from worker_service.batch.request_states import RequestStates


class DraftProgress:
    """Counts of computed tokens by slot; guesses count once they have become known tokens.

    num_computed int64 [slots]: known tokens whose keys and values stand in the request's blocks.
    Right behind them num_guesses int64 [slots] guesses have been computed as well, int32 [slots, most].
    """

    def __init__(self, states: RequestStates, *, most_drafts: int) -> None:
        self._states = states
        self._most_drafts = most_drafts
        self.clear()

    def begin(self, slot: int, *, num_computed: int) -> None:
        """Let a slot start anew with another request."""
        self._grow()
        self._num_computed[slot] = num_computed
        self._num_guesses[slot] = 0

    def starts(self, slots: Int64s, ends: Int64s) -> Int64s:
        """First token of each slot to be computed, where the tokens before `ends` are known.

        At least the last of those is left, as its logits are what one wants to see.
        """
        self._grow()
        computed = self._num_computed[slots]
        columns = computed[:, None] + np.arange(self._most_drafts)
        tokens = self._states.tokens
        known = tokens.values[slots[:, None], np.minimum(columns, tokens.width - 1)]
        is_right = (known == self._guesses[slots]) & (columns < ends[:, None])
        is_right &= np.arange(self._most_drafts) < self._num_guesses[slots][:, None]
        num_right = np.logical_and.accumulate(is_right, axis=1).sum(axis=1)
        return np.minimum(computed + num_right, ends - 1)

    def note_computed(self, slots: Int64s, ends: Int64s) -> None:
        """Count what stands before `ends` as computed, as far as the requests have blocks."""
        self._num_computed[slots] = np.minimum(ends, self._capacity(slots))
        self._num_guesses[slots] = 0

    def note_guesses(self, slots: Int64s, num_known: Int64s, num_drafts: Int64s) -> None:
        """Remember the drafts that stand behind the known tokens; the last is not computed yet.

        What a request has no blocks for is gone already.
        """
        num_kept = np.clip(self._capacity(slots) - num_known, 0, np.maximum(num_drafts - 1, 0))
        columns = num_known[:, None] + np.arange(self._most_drafts)
        tokens = self._states.tokens
        self._guesses[slots] = tokens.values[slots[:, None], np.minimum(columns, tokens.width - 1)]
        self._num_guesses[slots] = num_kept

    def clear(self) -> None:
        """Forget every slot."""
        num_slots = self._states.num_slots
        self._num_computed: Int64s = np.zeros(num_slots, dtype=np.int64)
        self._num_guesses: Int64s = np.zeros(num_slots, dtype=np.int64)
        self._guesses: Int32s = np.zeros((num_slots, self._most_drafts), dtype=np.int32)

    def _capacity(self, slots: Int64s) -> Int64s:
        """Tokens that the slots' blocks have room for."""
        states = self._states
        return states.blocks.lengths[slots].astype(np.int64) * states.block_size

    def _grow(self) -> None:
        added = self._states.num_slots - len(self._num_computed)
        if added > 0:
            self._num_computed = np.concatenate([self._num_computed, np.zeros(added, np.int64)])
            self._num_guesses = np.concatenate([self._num_guesses, np.zeros(added, np.int64)])
            more = np.zeros((added, self._most_drafts), np.int32)
            self._guesses = np.concatenate([self._guesses, more])
