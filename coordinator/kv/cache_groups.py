"""Blocks of a sequence whose model has layers with sliding windows: a block table for each group of them.

All tables draw from one pool. A table whose layers see everything keeps all blocks; one whose layers
have a window gives back what no later token sees, as tokens are committed, and takes blocks as they are
planned: a long prompt computed in chunks never holds more than its window and the chunks in flight.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import CacheFull
from coordinator.kv.allocator import KVAllocator, OneTableAllocator, SequenceBlocks
from coordinator.kv.block_pool import NULL_BLOCK, BlockPool
from coordinator.kv.group_prefixes import GroupPrefixes, first_seen_block
from coordinator.kv.prefix_cache import NoPrefixCache, PrefixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNeeds:
    """How many blocks sequences take.

    windows: tokens that the layers of each block table see, 0: all. most_in_flight: most tokens of a
    sequence in steps that are planned and not committed.
    """

    block_size: int
    windows: tuple[int, ...] = (0,)
    most_in_flight: int = 0

    def of_table(self, window: int, num_tokens: int) -> int:
        """Most blocks that a table holds at once until so many tokens are computed."""
        num_blocks = -(-num_tokens // self.block_size)
        if not window:
            return num_blocks
        # Blocks begin before the window and end behind what is planned, and one waits to be given back.
        return min(num_blocks, -(-(window + self.most_in_flight) // self.block_size) + 2)

    def of_sequence(self, num_tokens: int) -> int:
        """Most blocks that a sequence holds at once until so many tokens are computed."""
        return sum(self.of_table(window, num_tokens) for window in self.windows)

    def longest(self, num_blocks: int, *, most: int) -> int:
        """Tokens of the longest sequence, at most `most`, that so many blocks suffice for."""
        lengths = range(most + 1)
        return bisect_right(lengths, num_blocks, key=self.of_sequence) - 1


def make_allocator(needs: BlockNeeds, *, num_blocks: int, has_prefix_cache: bool) -> KVAllocator:
    """The allocator for a model with these block tables, over num_blocks blocks with the null block."""
    pool, block_size = BlockPool(num_blocks), needs.block_size
    if not any(needs.windows):
        prefixes = PrefixCache(block_size=block_size) if has_prefix_cache else NoPrefixCache()
        return OneTableAllocator(pool, block_size=block_size, prefixes=prefixes)
    return GroupAllocator(
        pool,
        needs,
        prefixes=GroupPrefixes(
            needs.windows, block_size=block_size, has_prefix_cache=has_prefix_cache
        ),
    )


class GroupAllocator:
    """A block table for each window; the protocol says what the methods do."""

    def __init__(self, pool: BlockPool, needs: BlockNeeds, *, prefixes: GroupPrefixes) -> None:
        self._pool = pool
        self._needs = needs
        self._block_size = needs.block_size
        self._windows = needs.windows
        self._prefixes = prefixes
        self.num_tables = len(needs.windows)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence owns; they may hold prefixes."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence; what has only windows may be of any length."""
        num_usable = self._pool.num_usable
        most = num_usable * self._block_size if 0 in self._windows else 2**31 - 1
        return self._needs.longest(num_usable, most=most)

    def num_missing(self, blocks: SequenceBlocks, num_tokens: int) -> int:
        """Blocks that `append` would take, over all tables."""
        num_blocks = -(-num_tokens // self._block_size)
        return sum(max(0, num_blocks - len(table)) for table in blocks.tables)

    def reserve(
        self,
        blocks: SequenceBlocks,
        token_ids: "array[int]",
        *,
        num_spare: int,
        reads_prefixes: bool = True,
        beside: Sequence[list[int]] = (),
    ) -> int:
        """Fill tables without a window for all tokens; the others get blocks when steps are planned.

        There is room for those nevertheless, so that the prompt is not preempted at once.
        """
        assert not blocks.table, "tables are reserved once"
        while len(blocks.tables) < self.num_tables:
            blocks.tables.append([])
            blocks.num_released.append(0)
        shared = [list(table) for table in beside]
        if not shared and reads_prefixes:
            shared = self._prefixes.find(blocks.hashes, token_ids)
        kept = [block for table in shared for block in table if block != NULL_BLOCK]
        num_computed = len(shared[0]) * self._block_size if shared else 0
        needed = self._needs.of_sequence(len(token_ids)) - len(kept)
        # A found block that nobody owns is free now and no longer once it is shared.
        if needed + num_spare > self._pool.num_free - self._pool.count_free(kept):
            raise CacheFull(f"{needed} blocks and {num_spare} spare ones are not free")
        self._pool.share(kept)
        for index, (window, table) in enumerate(zip(self._windows, blocks.tables, strict=True)):
            table += shared[index] if shared else []
            blocks.num_released[index] = self._first_seen(num_computed, window)
        num_blocks = -(-len(token_ids) // self._block_size)
        for window, table in zip(self._windows, blocks.tables, strict=True):
            if not window:
                self._extend(table, num_blocks - len(table))
        self._count_slots(blocks)
        blocks.publish_at = num_computed + self._block_size
        return num_computed

    def shared(self, blocks: SequenceBlocks, num_tokens: int) -> Sequence[list[int]]:
        """The beginning of each table, with null blocks for what the next token does not see."""
        num_full = (num_tokens - 1) // self._block_size
        parts: list[list[int]] = []
        for window, table, num_released in zip(
            self._windows, blocks.tables, blocks.num_released, strict=True
        ):
            first = self._first_seen(num_full * self._block_size, window)
            if num_released > first:
                return ()
            parts.append([NULL_BLOCK] * first + table[first:num_full])
        return parts if num_full else ()

    def append(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Extend all tables."""
        missing = self.num_missing(blocks, num_tokens)
        if missing > self._pool.num_free:
            raise CacheFull(f"{missing} KV cache blocks are needed, {self._pool.num_free} are free")
        num_blocks = -(-num_tokens // self._block_size)
        for table in blocks.tables:
            self._extend(table, num_blocks - len(table))
        self._count_slots(blocks)

    def publish(
        self, blocks: SequenceBlocks, token_ids: "array[int]", *, num_computed: int
    ) -> None:
        """Publish what has become full, and give back what no later token sees."""
        while blocks.publish_at <= num_computed:
            index = blocks.publish_at // self._block_size - 1
            for number, table in enumerate(blocks.tables):
                block = table[index]
                if index >= blocks.num_released[number] and self._prefixes.publish(
                    blocks.hashes, token_ids, table=number, index=index, block=block
                ):
                    self._pool.mark_worth_keeping(block)
            blocks.publish_at += self._block_size
        for number, window in enumerate(self._windows):
            first, num_released = (
                self._first_seen(num_computed, window),
                blocks.num_released[number],
            )
            if first > num_released:
                self._pool.free(blocks.tables[number][num_released:first])
                blocks.num_released[number] = first

    def release(self, blocks: SequenceBlocks) -> None:
        """Give back what each table still has."""
        for number, table in enumerate(blocks.tables):
            self._pool.free(table[blocks.num_released[number] :])
            table.clear()
            blocks.num_released[number] = 0
        blocks.num_slots = 0

    def forget_prefixes(self) -> None:
        """Forget what every block holds."""
        self._prefixes.clear()
        self._pool.keep_nothing()

    def _extend(self, table: list[int], count: int) -> None:
        if count > 0:
            taken = self._pool.allocate(count)
            for block in taken:
                self._prefixes.forget(block)
            table += taken

    def _count_slots(self, blocks: SequenceBlocks) -> None:
        blocks.num_slots = min(map(len, blocks.tables)) * self._block_size

    def _first_seen(self, num_tokens: int, window: int) -> int:
        return first_seen_block(num_tokens, window=window, block_size=self._block_size)
