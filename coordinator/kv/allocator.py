"""Blocks for the tokens of one sequence: look a prefix up, reserve, append, publish, release.

Here for a model whose layers all need the same tokens: one block table a sequence. `cache_groups` has
the same for several.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

from common.errors import CacheFull
from coordinator.kv.block_pool import BlockPool
from coordinator.kv.prefix_cache import PrefixIndex


class SequenceBlocks:
    """The block tables of one sequence and what its blocks hold; only the allocator changes them.

    table: block ids in the order of the tokens. tables: that one, then those of further layers.
    num_released: how many blocks at the beginning of each table are no longer the sequence's, though
    their ids stay. num_slots: tokens that fit. publish_at: from so many computed tokens on there is a
    full block the prefix cache has not heard of. hashes: as in `PrefixIndex`; they name tokens, so they
    stay when the blocks go.
    """

    __slots__ = ("hashes", "num_released", "num_slots", "publish_at", "table", "tables")

    def __init__(self) -> None:
        self.table: list[int] = []
        self.tables = [self.table]
        self.num_released = [0]
        self.hashes: list[bytes] = []
        self.num_slots = 0
        self.publish_at = 0


class KVAllocator(Protocol):
    """Turns tokens into blocks of a pool; sizes in tokens."""

    num_tables: int
    """Block tables of a sequence."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence owns; they may hold prefixes."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence the whole pool can hold."""
        ...

    def num_missing(self, blocks: SequenceBlocks, num_tokens: int) -> int:
        """Blocks that `append` would take."""
        ...

    def reserve(
        self,
        blocks: SequenceBlocks,
        token_ids: "array[int]",
        *,
        num_spare: int,
        reads_prefixes: bool = True,
        beside: Sequence[list[int]] = (),
    ) -> int:
        """Begin empty tables for these tokens and return how many are computed already.

        beside: of each table the blocks that hold the beginning of the tokens for another sequence, and
        leave one to be computed. Raises CacheFull, taking nothing, unless there is room for all tokens
        and num_spare blocks stay free beside it.
        """
        ...

    def shared(self, blocks: SequenceBlocks, num_tokens: int) -> Sequence[list[int]]:
        """What `reserve` takes as beside: the blocks that so many tokens fill, but for the last token's.

        Empty where the sequence no longer has all that is needed.
        """
        ...

    def append(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Extend the tables until they hold num_tokens tokens; raises CacheFull, taking nothing."""
        ...

    def publish(
        self, blocks: SequenceBlocks, token_ids: "array[int]", *, num_computed: int
    ) -> None:
        """Let others find the blocks that are full once num_computed tokens are computed.

        What no later token sees is given back.
        """
        ...

    def release(self, blocks: SequenceBlocks) -> None:
        """Give all blocks back and empty the tables."""
        ...

    def forget_prefixes(self) -> None:
        """Forget what every block holds."""
        ...


class OneTableAllocator:
    """One block table a sequence, from which nothing is given back before its end."""

    num_tables = 1

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

    def num_missing(self, blocks: SequenceBlocks, num_tokens: int) -> int:
        """Blocks that `append` would take."""
        return max(0, -(-num_tokens // self._block_size) - len(blocks.table))

    def reserve(
        self,
        blocks: SequenceBlocks,
        token_ids: "array[int]",
        *,
        num_spare: int,
        reads_prefixes: bool = True,
        beside: Sequence[list[int]] = (),
    ) -> int:
        """Fill an empty table for all tokens."""
        assert not blocks.table, "a table is reserved once"
        shared = list(beside[0]) if beside else []
        if not shared and reads_prefixes:
            shared = self._prefixes.find(blocks.hashes, token_ids)
        count = -(-len(token_ids) // self._block_size) - len(shared)
        # A found block that nobody owns is free now and no longer once it is shared.
        if count + num_spare > self._pool.num_free - self._pool.count_free(shared):
            raise CacheFull(f"{count} blocks and {num_spare} spare ones are not free")
        self._pool.share(shared)
        blocks.table += shared
        self._extend(blocks, count)
        num_computed = len(shared) * self._block_size
        blocks.publish_at = num_computed + self._block_size
        return num_computed

    def shared(self, blocks: SequenceBlocks, num_tokens: int) -> Sequence[list[int]]:
        """The beginning of the table."""
        full = blocks.table[: (num_tokens - 1) // self._block_size]
        return [full] if full else ()

    def append(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Extend the table."""
        missing = -(-num_tokens // self._block_size) - len(blocks.table)
        if missing > 0:
            self._extend(blocks, missing)

    def publish(
        self, blocks: SequenceBlocks, token_ids: "array[int]", *, num_computed: int
    ) -> None:
        """Publish the blocks that have become full."""
        while blocks.publish_at <= num_computed:
            index = blocks.publish_at // self._block_size - 1
            block = blocks.table[index]
            if self._prefixes.publish(blocks.hashes, token_ids, index=index, block=block):
                self._pool.mark_worth_keeping(block)
            blocks.publish_at += self._block_size

    def release(self, blocks: SequenceBlocks) -> None:
        """Give all blocks of the table back."""
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
