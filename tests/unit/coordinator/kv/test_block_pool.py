"""Facts of the block pool."""

import pytest

from common.errors import CacheFull
from coordinator.kv.block_pool import NULL_BLOCK, BlockPool


def _pool_that_keeps(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool whose blocks are all taken and worth keeping, and those blocks."""
    pool = BlockPool(num_blocks)
    taken = pool.allocate(num_blocks - 1)
    for block in taken:
        pool.mark_worth_keeping(block)
    return pool, taken


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


def test_worthless_blocks_come_back_in_the_order_they_were_given():
    """Blocks that hold nothing worth keeping are reused first, in the order in which they were freed."""
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


def test_shared_block_is_free_when_its_last_owner_leaves():
    """A block with two owners stays taken until both have freed it."""
    pool, (block, *_) = _pool_that_keeps(4)
    pool.share([block])
    pool.free([block])
    assert pool.num_free == 0
    pool.free([block])
    assert pool.num_free == 1


def test_block_that_holds_nothing_is_not_shared():
    """An owner of a free block whose contents are worth nothing is our mistake."""
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(AssertionError, match="nothing to share"):
        pool.share([block])


def test_blocks_worth_keeping_are_taken_last():
    """A free block that holds a prefix outlives every free block that holds none."""
    pool = BlockPool(4)
    kept, worthless, _ = pool.allocate(3)
    pool.mark_worth_keeping(kept)
    pool.free([kept])
    pool.free([worthless])
    assert pool.allocate(1) == [worthless]
    assert pool.allocate(1) == [kept]


def test_longest_unused_block_goes_first_and_of_a_table_its_end():
    """Of two tables freed one after the other the older goes first, each from its end."""
    pool, (a, b, c, d) = _pool_that_keeps(5)
    pool.free([a, b])
    pool.free([c, d])
    assert pool.allocate(4) == [b, a, d, c]


def test_sharing_renews_the_use_of_a_block():
    """A block that was shared and freed again counts as used just now."""
    pool, (a, b) = _pool_that_keeps(3)
    pool.free([a])
    pool.free([b])
    pool.share([a])
    assert pool.num_free == 1
    pool.free([a])
    assert pool.allocate(2) == [b, a]


def test_block_that_was_taken_again_is_worth_nothing():
    """Once handed out, what a block held is gone: freed, it goes before those worth keeping."""
    pool, (a, b) = _pool_that_keeps(3)
    pool.free([a])
    (again,) = pool.allocate(1)
    pool.free([b])
    pool.free([again])
    assert pool.allocate(1) == [again]


def test_a_pool_that_keeps_nothing_loses_no_block():
    """Blocks worth keeping become worthless, whether free or owned."""
    pool, (a, b) = _pool_that_keeps(3)
    pool.free([a])
    pool.keep_nothing()
    pool.free([b])
    assert pool.num_free == 2
    with pytest.raises(AssertionError, match="nothing to share"):
        pool.share([a])
