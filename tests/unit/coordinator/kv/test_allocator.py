"""Facts of the per-sequence allocator."""

import pytest

from common.errors import CacheFull
from coordinator.kv.allocator import KVAllocator
from coordinator.kv.block_pool import BlockPool


@pytest.fixture
def allocator() -> KVAllocator:
    """Five usable blocks of four tokens."""
    return KVAllocator(BlockPool(6), block_size=4)


def test_capacity_leaves_the_null_block_out(allocator: KVAllocator):
    """One sequence can hold all blocks but the null block."""
    assert allocator.capacity == 20


def test_reserve_covers_the_tokens(allocator: KVAllocator):
    """Nine tokens need three blocks of four."""
    assert len(allocator.reserve(9, num_spare=0)) == 3
    assert allocator.num_free_blocks == 2


def test_reserve_keeps_spare_blocks_free(allocator: KVAllocator):
    """A reservation that would eat into the spare blocks is refused and takes nothing."""
    with pytest.raises(CacheFull):
        allocator.reserve(9, num_spare=3)
    assert allocator.num_free_blocks == 5


def test_append_takes_a_block_only_when_the_last_is_full(allocator: KVAllocator):
    """The eighth token fits the second block, the ninth needs a third."""
    table = allocator.reserve(5, num_spare=0)
    allocator.append(table, 8)
    assert len(table) == 2
    allocator.append(table, 9)
    assert len(table) == 3


def test_append_to_a_full_pool_takes_nothing(allocator: KVAllocator):
    """A table that cannot grow keeps what it has."""
    table = allocator.reserve(16, num_spare=0)
    with pytest.raises(CacheFull):
        allocator.append(table, 24)
    assert len(table) == 4
    assert allocator.num_free_blocks == 1


def test_release_returns_every_block(allocator: KVAllocator):
    """A released table is empty and all its blocks are free."""
    table = allocator.reserve(20, num_spare=0)
    allocator.release(table)
    assert table == []
    assert allocator.num_free_blocks == 5
