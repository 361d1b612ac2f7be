"""Facts of the per-sequence allocator."""

from array import array

import pytest

from common.errors import CacheFull
from coordinator.kv.allocator import KVAllocator, OneTableAllocator, SequenceBlocks
from coordinator.kv.block_pool import BlockPool
from coordinator.kv.prefix_cache import PrefixCache


@pytest.fixture
def allocator() -> KVAllocator:
    """Five usable blocks of four tokens."""
    return OneTableAllocator(BlockPool(6), block_size=4, prefixes=PrefixCache(block_size=4))


def _tokens(count: int, *, first: int = 0) -> "array[int]":
    return array("i", range(first, first + count))


def _reserved(
    allocator: KVAllocator, token_ids: "array[int]", *, num_spare: int = 0
) -> tuple[SequenceBlocks, int]:
    """Blocks for these tokens, and how many of the tokens are computed already."""
    blocks = SequenceBlocks()
    return blocks, allocator.reserve(blocks, token_ids, num_spare=num_spare)


def test_capacity_leaves_the_null_block_out(allocator: KVAllocator):
    """One sequence can hold all blocks but the null block."""
    assert allocator.capacity == 20


def test_reserve_covers_the_tokens(allocator: KVAllocator):
    """Nine tokens need three blocks of four."""
    blocks, num_computed = _reserved(allocator, _tokens(9))
    assert len(blocks.table) == 3
    assert blocks.num_slots == 12
    assert num_computed == 0
    assert allocator.num_free_blocks == 2


def test_reserve_keeps_spare_blocks_free(allocator: KVAllocator):
    """A reservation that would eat into the spare blocks is refused and takes nothing."""
    with pytest.raises(CacheFull):
        _reserved(allocator, _tokens(9), num_spare=3)
    assert allocator.num_free_blocks == 5


def test_append_takes_a_block_only_when_the_last_is_full(allocator: KVAllocator):
    """The eighth token fits the second block, the ninth needs a third."""
    blocks, _ = _reserved(allocator, _tokens(5))
    allocator.append(blocks, 8)
    assert len(blocks.table) == 2
    allocator.append(blocks, 9)
    assert len(blocks.table) == 3
    assert blocks.num_slots == 12


def test_append_to_a_full_pool_takes_nothing(allocator: KVAllocator):
    """A table that cannot grow keeps what it has."""
    blocks, _ = _reserved(allocator, _tokens(16))
    with pytest.raises(CacheFull):
        allocator.append(blocks, 24)
    assert len(blocks.table) == 4
    assert allocator.num_free_blocks == 1


def test_release_returns_every_block(allocator: KVAllocator):
    """A released table is empty and all its blocks are free."""
    blocks, _ = _reserved(allocator, _tokens(20))
    allocator.release(blocks)
    assert blocks.table == []
    assert blocks.num_slots == 0
    assert allocator.num_free_blocks == 5


def test_published_blocks_are_shared(allocator: KVAllocator):
    """A second sequence that begins alike gets the full blocks of the first and new ones behind."""
    first, _ = _reserved(allocator, _tokens(9))
    allocator.publish(first, _tokens(9), num_computed=9)
    second, num_computed = _reserved(allocator, _tokens(10))
    assert num_computed == 8
    assert second.table[:2] == first.table[:2]
    assert second.table[2] != first.table[2]
    assert allocator.num_free_blocks == 1


def test_only_full_blocks_are_published(allocator: KVAllocator):
    """Seven computed tokens of four a block publish one block, the eighth the second."""
    blocks, _ = _reserved(allocator, _tokens(9))
    allocator.publish(blocks, _tokens(9), num_computed=7)
    other, num_computed = _reserved(allocator, _tokens(9))
    assert num_computed == 4
    allocator.release(other)
    allocator.publish(blocks, _tokens(9), num_computed=8)
    assert _reserved(allocator, _tokens(9))[1] == 8


def test_released_prefix_is_found_again_until_its_blocks_are_needed(allocator: KVAllocator):
    """Free blocks keep their prefix; a sequence that needs them takes the end of it first."""
    blocks, _ = _reserved(allocator, _tokens(12))
    allocator.publish(blocks, _tokens(12), num_computed=12)
    allocator.release(blocks)
    assert allocator.num_free_blocks == 5
    other, _ = _reserved(allocator, _tokens(16, first=100))
    allocator.release(other)
    assert _reserved(allocator, _tokens(13))[1] == 4


def test_found_blocks_that_are_free_count_as_taken(allocator: KVAllocator):
    """A prefix found in free blocks leaves fewer for the rest: too few refuse and take nothing."""
    blocks, _ = _reserved(allocator, _tokens(12))
    allocator.publish(blocks, _tokens(12), num_computed=12)
    allocator.release(blocks)
    with pytest.raises(CacheFull):
        _reserved(allocator, _tokens(20), num_spare=1)
    assert allocator.num_free_blocks == 5
    longest, num_computed = _reserved(allocator, _tokens(20))
    assert num_computed == 12
    assert len(set(longest.table)) == 5


def test_forgotten_prefixes_are_not_found(allocator: KVAllocator):
    """Once prefixes are forgotten every token is computed anew, and all blocks are there."""
    blocks, _ = _reserved(allocator, _tokens(12))
    allocator.publish(blocks, _tokens(12), num_computed=12)
    allocator.release(blocks)
    allocator.forget_prefixes()
    assert _reserved(allocator, _tokens(20))[1] == 0
