"""Blocks for the tokens of one sequence: reserve, append, release. Knows token counts, not tokens.

A block table is a plain list of block ids that its sequence owns and only this class changes.
"""

from common.errors import CacheFull
from coordinator.kv.block_pool import BlockPool


class KVAllocator:
    """Turns token counts into blocks of a pool; sizes in tokens."""

    def __init__(self, pool: BlockPool, *, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence owns."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence the whole pool can hold."""
        return self._pool.num_usable * self._block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold num_tokens tokens."""
        return -(-num_tokens // self._block_size)

    def reserve(self, num_tokens: int, *, num_spare: int) -> list[int]:
        """A block table for num_tokens tokens.

        Raises CacheFull, taking nothing, unless num_spare blocks stay free beside it.
        """
        count = self.num_blocks_for(num_tokens)
        if count + num_spare > self._pool.num_free:
            raise CacheFull(f"{count} blocks and {num_spare} spare ones are not free")
        return self._pool.allocate(count)

    def append(self, block_table: list[int], num_tokens: int) -> None:
        """Extend a block table until it holds num_tokens tokens; raises CacheFull, taking nothing."""
        missing = self.num_blocks_for(num_tokens) - len(block_table)
        if missing > 0:
            block_table.extend(self._pool.allocate(missing))

    def release(self, block_table: list[int]) -> None:
        """Give all blocks of a table back and empty it."""
        self._pool.free(block_table)
        block_table.clear()
