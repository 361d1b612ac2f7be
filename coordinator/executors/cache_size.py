"""How many KV cache blocks a group of ranks can hold; plain arithmetic on what they reported."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.config import CacheConfig
from common.errors import ConfigError
from common.worker_api import KVCacheSpec, MemoryReport
from coordinator.kv.cache_groups import BlockNeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """What one rank has for its KV cache; `name` is how messages call the rank."""

    name: str
    memory: MemoryReport
    spec: KVCacheSpec

    @property
    def num_blocks(self) -> int:
        """Whole blocks that fit, the null block 0 included."""
        return self.memory.kv_cache_bytes // self.spec.bytes_per_block


def num_kv_cache_blocks(
    rooms: Sequence[CacheRoom], config: CacheConfig, needs: BlockNeeds, *, max_model_len: int
) -> int:
    """The blocks every rank allocates: the least that fits anywhere, at most config.num_blocks.

    Raises ConfigError when one sequence of max_model_len tokens would not fit, unless
    config.num_blocks asks for so few, and when not even one block beside the null block fits.
    """
    tightest = min(rooms, key=lambda room: room.num_blocks)
    fitting = tightest.num_blocks
    # The null block is nobody's.
    needed = 1 + needs.of_sequence(max_model_len)
    if config.num_blocks is not None:
        needed = min(needed, config.num_blocks)
    if fitting < needed:
        raise ConfigError(_too_small(tightest, needed, needs, max_model_len))
    return fitting if config.num_blocks is None else min(fitting, config.num_blocks)


def check_room(rooms: Sequence[CacheRoom], num_blocks: int) -> None:
    """Raise ConfigError when a rank that joins has too little room for the blocks of its group."""
    for room in rooms:
        if room.num_blocks < num_blocks:
            raise ConfigError(
                f"{room.name} has room for {room.num_blocks} KV cache blocks, and the group it joins "
                f"has {num_blocks}: give it {num_blocks * room.spec.bytes_per_block} bytes"
            )


def _too_small(room: CacheRoom, needed: int, needs: BlockNeeds, max_model_len: int) -> str:
    longest = needs.longest(room.num_blocks - 1, most=max_model_len)
    shorter = f" or lower --max-model-len to {longest}" if longest else ""
    return (
        f"the KV cache of {room.name} has room for {room.num_blocks} blocks of {needs.block_size} "
        f"tokens in {room.memory.kv_cache_bytes} bytes, and --max-model-len {max_model_len} needs "
        f"{needed}: give it {needed * room.spec.bytes_per_block} bytes (--kv-cache-bytes on a CPU, "
        f"--gpu-memory-utilization on a GPU){shorter}"
    )
