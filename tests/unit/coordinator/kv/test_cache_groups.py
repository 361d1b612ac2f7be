"""Facts of the allocator whose sequences have several block tables, some with a sliding window."""

from array import array

import pytest

from common.errors import CacheFull
from coordinator.kv.allocator import KVAllocator, OneTableAllocator, SequenceBlocks
from coordinator.kv.block_pool import NULL_BLOCK
from coordinator.kv.cache_groups import BlockNeeds, make_allocator

WINDOW = 6
NEEDS = BlockNeeds(block_size=4, windows=(0, WINDOW), most_in_flight=4)


@pytest.fixture
def allocator() -> KVAllocator:
    """39 usable blocks of four tokens; one table sees everything, the other six tokens."""
    return make_allocator(NEEDS, num_blocks=40, has_prefix_cache=True)


def _tokens(count: int, *, first: int = 0) -> "array[int]":
    return array("i", range(first, first + count))


def _computed(allocator: KVAllocator, token_ids: "array[int]") -> SequenceBlocks:
    """A sequence of which all but the last token were computed and committed in steps of four."""
    blocks = SequenceBlocks()
    start = allocator.reserve(blocks, token_ids, num_spare=0)
    for end in range(start + 4, len(token_ids), 4):
        allocator.append(blocks, end)
        allocator.publish(blocks, token_ids, num_computed=end)
    allocator.append(blocks, len(token_ids))
    return blocks


def _num_owned(blocks: SequenceBlocks, table: int) -> int:
    return len(blocks.tables[table]) - blocks.num_released[table]


def test_a_model_without_windows_has_one_table():
    """It pays for nothing of all this."""
    allocator = make_allocator(BlockNeeds(block_size=4), num_blocks=6, has_prefix_cache=True)
    assert isinstance(allocator, OneTableAllocator)


def test_a_window_holds_only_the_blocks_it_sees(allocator: KVAllocator):
    """Of 61 tokens the next one sees from the 55th on: blocks 13 to 15 of 16."""
    blocks = _computed(allocator, _tokens(61))
    assert _num_owned(blocks, 0) == 16
    assert _num_owned(blocks, 1) == 3
    assert blocks.num_released == [0, 13]
    assert allocator.num_free_blocks == 39 - 16 - 3


@pytest.mark.parametrize("count", [1, 7, 24, 61])
def test_all_blocks_come_back(allocator: KVAllocator, count: int):
    """Those given back early are not given back twice."""
    blocks = _computed(allocator, _tokens(count))
    allocator.release(blocks)
    assert allocator.num_free_blocks == 39
    assert blocks.tables == [[], []]


def test_needs_bound_what_is_held(allocator: KVAllocator):
    """Whatever the steps are, a table never has more blocks than were counted for it."""
    tokens = _tokens(100)
    for step in (1, 2, 3, 4):
        blocks = SequenceBlocks()
        allocator.reserve(blocks, tokens, num_spare=0, reads_prefixes=False)
        committed = 0
        for end in range(step, 100, step):
            allocator.append(blocks, min(end + 4 - step, 99))
            assert _num_owned(blocks, 1) <= NEEDS.of_table(WINDOW, 100)
            committed = end
            if committed >= blocks.publish_at:
                allocator.publish(blocks, tokens, num_computed=committed)
        allocator.release(blocks)


def test_capacity_counts_all_tables(allocator: KVAllocator):
    """The window takes at most five blocks, so 34 are left for what sees everything."""
    assert NEEDS.of_table(WINDOW, 1000) == 5
    assert allocator.capacity == 34 * 4


def test_what_has_only_windows_may_be_of_any_length():
    """Its blocks do not grow with it."""
    needs = BlockNeeds(block_size=4, windows=(WINDOW,), most_in_flight=4)
    assert make_allocator(needs, num_blocks=6, has_prefix_cache=True).capacity > 1 << 30
    assert make_allocator(needs, num_blocks=5, has_prefix_cache=True).capacity == 16


def test_admission_has_room_for_the_window(allocator: KVAllocator):
    """A prompt whose window would not fit is not begun."""
    with pytest.raises(CacheFull):
        allocator.reserve(SequenceBlocks(), _tokens(34 * 4 + 1), num_spare=0)
    with pytest.raises(CacheFull):
        allocator.reserve(SequenceBlocks(), _tokens(34 * 4), num_spare=1)
    assert allocator.num_free_blocks == 39


def test_a_prefix_is_found_with_the_window_that_goes_with_it(allocator: KVAllocator):
    """Of the table with a window only the blocks the next token sees have to be there."""
    tokens = _tokens(61)
    first = _computed(allocator, tokens)
    second = SequenceBlocks()
    assert allocator.reserve(second, tokens, num_spare=0) == 60
    assert second.tables[0][:15] == first.tables[0][:15]
    assert second.tables[1][:15] == [NULL_BLOCK] * 13 + first.tables[1][13:15]
    assert second.num_released == [0, 13]
    allocator.release(second)
    allocator.release(first)
    assert allocator.num_free_blocks == 39


def test_released_window_blocks_are_found_until_they_are_needed(allocator: KVAllocator):
    """A prompt that ends earlier finds blocks of the window that were given back long ago."""
    allocator.release(_computed(allocator, _tokens(61)))
    again = SequenceBlocks()
    assert allocator.reserve(again, _tokens(22), num_spare=0) == 20
    assert again.tables[1][:3] == [NULL_BLOCK] * 3
    assert NULL_BLOCK not in again.tables[1][3:]
    allocator.release(again)
    # A sequence takes nearly all blocks: those of the earlier windows are no longer theirs.
    allocator.release(_computed(allocator, _tokens(130, first=1000)))
    assert allocator.reserve(SequenceBlocks(), _tokens(22), num_spare=0) == 0


def test_blocks_of_a_leader_are_shared_while_its_window_is_there(allocator: KVAllocator):
    """Once the leader has gone on and given blocks back, there is nothing to share."""
    tokens = _tokens(22)
    leader = _computed(allocator, tokens)
    parts = allocator.shared(leader, 22)
    assert [len(part) for part in parts] == [5, 5]
    follower = SequenceBlocks()
    assert allocator.reserve(follower, tokens, num_spare=0, beside=parts) == 20
    assert follower.tables[1][3:5] == leader.tables[1][3:5]
    longer = _tokens(41)
    for end in range(24, 41, 4):
        allocator.append(leader, end)
        allocator.publish(leader, longer, num_computed=end)
    assert allocator.shared(leader, 22) == ()


def test_no_prefix_cache_finds_nothing():
    """Every token is computed anew."""
    allocator = make_allocator(NEEDS, num_blocks=40, has_prefix_cache=False)
    _computed(allocator, _tokens(20))
    assert allocator.reserve(SequenceBlocks(), _tokens(20), num_spare=0) == 0
