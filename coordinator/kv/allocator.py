"""Blocks for the tokens of one sequence: look a prefix up, reserve, append, publish, release."""

from array import array
from collections.abc import Sequence

from common.errors import CacheFull
from coordinator.kv.block_pool import BlockPool
from coordinator.kv.prefix_cache import PrefixIndex


class SequenceBlocks:
    """The block table of one sequence and what its blocks hold; only the allocator changes it.

    table: block ids in the order of the tokens. num_slots: tokens that fit. publish_at: from so
    many computed tokens on there is a full block the prefix cache has not heard of. hashes: as in
    `PrefixIndex`; they name tokens, so they stay when the blocks go.
    """

    __slots__ = ("hashes", "num_slots", "publish_at", "table")

    def __init__(self) -> None:
        self.table: list[int] = []
        self.hashes: list[bytes] = []
        self.num_slots = 0
        self.publish_at = 0


class KVAllocator:
    """Turns tokens into blocks of a pool; sizes in tokens."""

    def __init__(self, pool: BlockPool, *, block_size: int, prefixes: PrefixIndex) -> None:
        self._pool = pool
        self._block_size = block_size
        self._prefixes = prefixes

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence owns; they may hold prefixes."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence the whole pool can hold."""
        return self._pool.num_usable * self._block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold num_tokens tokens."""
        return -(-num_tokens // self._block_size)

    def reserve(
        self,
        blocks: SequenceBlocks,
        token_ids: "array[int]",
        *,
        num_spare: int,
        reads_prefixes: bool = True,
        beside: Sequence[int] = (),
    ) -> int:
        """Fill an empty table for these tokens and return how many are computed already.

        beside: blocks of another table that hold the beginning of the tokens, and leave one to be
        computed. Raises CacheFull, taking nothing, unless num_spare blocks stay free beside it.
        """
        assert not blocks.table, "a table is reserved once"
        shared = list(beside)
        if not shared and reads_prefixes:
            shared = self._prefixes.find(blocks.hashes, token_ids)
        count = self.num_blocks_for(len(token_ids)) - len(shared)
        # A found block that nobody owns is free now and no longer once it is shared.
        if count + num_spare > self._pool.num_free - self._pool.count_free(shared):
            raise CacheFull(f"{count} blocks and {num_spare} spare ones are not free")
        self._pool.share(shared)
        blocks.table += shared
        self._extend(blocks, count)
        num_computed = len(shared) * self._block_size
        blocks.publish_at = num_computed + self._block_size
        return num_computed

    def full_blocks(self, blocks: SequenceBlocks, num_tokens: int) -> list[int]:
        """The blocks of a table that so many tokens fill, but for the one the last token stands in."""
        return blocks.table[: (num_tokens - 1) // self._block_size]

    def append(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Extend a table until it holds num_tokens tokens; raises CacheFull, taking nothing."""
        missing = self.num_blocks_for(num_tokens) - len(blocks.table)
        if missing > 0:
            self._extend(blocks, missing)

    def publish(
        self, blocks: SequenceBlocks, token_ids: "array[int]", *, num_computed: int
    ) -> None:
        """Let others find the blocks that are full once num_computed tokens are computed."""
        while blocks.publish_at <= num_computed:
            index = blocks.publish_at // self._block_size - 1
            block = blocks.table[index]
            if self._prefixes.publish(blocks.hashes, token_ids, index=index, block=block):
                self._pool.mark_worth_keeping(block)
            blocks.publish_at += self._block_size

    def release(self, blocks: SequenceBlocks) -> None:
        """Give all blocks of a table back and empty it."""
        self._pool.free(blocks.table)
        blocks.table.clear()
        blocks.num_slots = 0

    def forget_prefixes(self) -> None:
        """Forget what every block holds."""
        self._prefixes.clear()
        self._pool.keep_nothing()

    def _extend(self, blocks: SequenceBlocks, count: int) -> None:
        taken = self._pool.allocate(count)
        for block in taken:
            self._prefixes.forget(block)
        blocks.table += taken
        blocks.num_slots = len(blocks.table) * self._block_size
