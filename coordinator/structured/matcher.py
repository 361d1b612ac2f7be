"""How far one output has come in its grammar, and what may come next.

A mask holds one bit per token of the vocabulary, bit i of word i // 32, set where the token may follow.
"""

from collections.abc import Sequence

import llguidance
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.int32]


class Matcher:
    """The grammar of one output, from its first token on."""

    def __init__(self, state: "llguidance.LLMatcher", *, vocab_size: int) -> None:
        """Take a fresh state."""
        self._state = state
        self._num_words = -(-vocab_size // 32)

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""
        return self._state.is_stopped()

    def advance(self, token_id: int) -> bool:
        """Take the next token of the output; False when the grammar does not allow it."""
        return self._state.consume_token(token_id)

    def masks_along(self, drafts: Sequence[int] = ()) -> Masks:
        """What may follow the output and each of its drafts that the grammar allows; int32 [1 + n, words].

        n is how many drafts, from the first on, it allows; those behind them can be in no output.
        """
        count = self._state.validate_tokens(list(drafts)) if drafts else 0
        masks = np.zeros((1 + count, self._num_words), dtype=np.int32)
        num_taken = 0
        for row in range(1 + count):
            # Once it is over, an end is all that a mask could allow, and the state says so itself.
            llguidance.numpy.fill_next_token_bitmask(self._state, masks, row)
            if row < count:
                self._state.consume_token(drafts[row])
                num_taken += 1
        if num_taken:
            self._state.rollback(num_taken)
        return masks
