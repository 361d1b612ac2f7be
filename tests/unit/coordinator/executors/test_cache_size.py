"""How many KV cache blocks a group gets from what its ranks report."""

import pytest

from common.config import CacheConfig
from common.errors import ConfigError
from common.worker_api import KVCacheGroup, KVCacheSpec, MemoryReport
from coordinator.executors.cache_size import CacheRoom, num_kv_cache_blocks
from coordinator.kv.cache_groups import BlockNeeds

NEEDS = BlockNeeds(block_size=4)


def room(name: str, *, kv_cache_bytes: int, bytes_per_block: int) -> CacheRoom:
    """A rank with that much memory and blocks of that size."""
    group = KVCacheGroup(
        kind="full", num_layers=1, num_kv_heads=1, head_size=1, bytes_per_block=bytes_per_block
    )
    return CacheRoom(
        name=name,
        memory=MemoryReport(kv_cache_bytes=kv_cache_bytes, activation_bytes=0, profile_seconds=0.0),
        spec=KVCacheSpec(block_size=4, groups=(group,)),
    )


ROOMS = [
    room("stage 0", kv_cache_bytes=1000, bytes_per_block=10),
    room("stage 1", kv_cache_bytes=1000, bytes_per_block=17),
]


def size(*, max_model_len: int, num_blocks: int | None = None) -> int:
    """Blocks of the two ranks above, which hold 100 and 58."""
    config = CacheConfig(block_size=4, num_blocks=num_blocks)
    return num_kv_cache_blocks(ROOMS, config, NEEDS, max_model_len=max_model_len)


def test_the_tightest_rank_decides():
    """Every rank must hold every block, and a block differs in size between stages."""
    assert size(max_model_len=100) == 58


def test_flag_is_a_cap():
    """--num-blocks lowers the number and never raises it over what fits."""
    assert size(max_model_len=100, num_blocks=20) == 20
    assert size(max_model_len=100, num_blocks=80) == 58


def test_longest_sequence_that_just_fits_is_accepted():
    """57 blocks of 4 tokens and the null block are 58."""
    assert size(max_model_len=57 * 4) == 58


def test_too_little_for_one_sequence_is_refused_with_numbers():
    """The message names the rank, what there is, what is needed, and both ways out."""
    with pytest.raises(ConfigError) as caught:
        size(max_model_len=57 * 4 + 1)
    message = str(caught.value)
    assert message.startswith("the KV cache of stage 1 has room for 58 blocks of 4 tokens")
    assert f"needs 59: give it {59 * 17} bytes" in message
    assert message.endswith("lower --max-model-len to 228")


def test_no_length_is_proposed_where_none_would_do():
    """Who has room for no sequence at all is told the bytes it takes and not to ask for 0 tokens."""
    tiny = room("stage 0", kv_cache_bytes=15, bytes_per_block=10)
    with pytest.raises(ConfigError) as refused:
        num_kv_cache_blocks([tiny], CacheConfig(block_size=4), NEEDS, max_model_len=100)
    assert str(refused.value).endswith(
        "(--kv-cache-bytes on a CPU, --gpu-memory-utilization on a GPU)"
    )


def test_explicit_few_blocks_are_taken_at_their_word():
    """Who asks for few blocks gets them; the scheduler refuses requests that cannot fit."""
    assert size(max_model_len=1000, num_blocks=5) == 5
