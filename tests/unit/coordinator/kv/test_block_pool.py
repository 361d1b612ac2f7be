"""Facts of the block pool."""

import pytest

from common.errors import CacheFull
from coordinator.kv.block_pool import NULL_BLOCK, BlockPool


def test_null_block_is_never_handed_out():
    """All blocks but the null block can be owned, each once."""
    taken = BlockPool(8).allocate(7)
    assert sorted(taken) == list(range(1, 8))
    assert NULL_BLOCK not in taken


def test_full_pool_refuses_and_takes_nothing():
    """A pool with too few free blocks refuses instead of handing out some."""
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(CacheFull):
        pool.allocate(2)
    assert pool.num_free == 1


def test_allocating_nothing_takes_nothing():
    """A count of 0 leaves the pool as it is."""
    pool = BlockPool(4)
    assert pool.allocate(0) == []
    assert pool.num_free == 3


def test_freed_blocks_come_back_in_the_order_they_were_given():
    """Freed blocks are reused first, in the order in which they were freed."""
    pool = BlockPool(8)
    taken = pool.allocate(3)
    pool.free(taken)
    assert pool.allocate(3) == taken


def test_freeing_twice_is_caught():
    """A block nobody owns cannot be freed."""
    pool = BlockPool(4)
    taken = pool.allocate(1)
    pool.free(taken)
    with pytest.raises(AssertionError, match="nobody owns"):
        pool.free(taken)
