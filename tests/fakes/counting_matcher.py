"""A grammar in which the n-th token leaves the remainder n when divided by a few."""

from collections.abc import Sequence

import numpy as np

from common.step import Int32s


class CountingMatcher:
    """Knows how many tokens the output has; never over."""

    def __init__(self, *, vocab_size: int, modulus: int) -> None:
        self._vocab_size = vocab_size
        self._modulus = modulus
        self._count = 0
        self.is_over = False

    def advance(self, token_id: int) -> bool:
        """Take the next token if it leaves the right remainder."""
        is_right = token_id % self._modulus == self._count % self._modulus
        self._count += is_right
        return is_right

    def masks_along(self, drafts: Sequence[int] = ()) -> Int32s:
        """Bits of what may follow the output, and each draft up to the first that may not."""
        num_right = 0
        while (
            num_right < len(drafts)
            and drafts[num_right] % self._modulus == (self._count + num_right) % self._modulus
        ):
            num_right += 1
        return np.stack([self._mask(self._count + index) for index in range(num_right + 1)])

    def _mask(self, count: int) -> Int32s:
        allowed = np.arange(self._vocab_size) % self._modulus == count % self._modulus
        bits = np.zeros(-(-self._vocab_size // 32) * 32, dtype=np.bool_)
        bits[: self._vocab_size] = allowed
        return np.packbits(bits, bitorder="little").view("<i4")
