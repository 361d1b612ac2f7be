"""How much memory the KV cache takes and may take, as arithmetic on measured numbers."""

import torch

from common.errors import ConfigError
from common.worker_api import KVCacheGroup, KVCacheSpec, MemoryBudget


def kv_cache_spec(
    *,
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: torch.dtype,
) -> KVCacheSpec:
    """Blocks with keys and values of num_layers layers, those of one block table of this rank.

    num_kv_heads are those this rank holds.
    """
    elements = 2 * num_layers * num_kv_heads * head_size * block_size
    group = KVCacheGroup(
        kind="full",
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        bytes_per_block=elements * dtype.itemsize,
    )
    return KVCacheSpec(block_size=block_size, groups=(group,))


def kv_cache_bytes(
    budget: MemoryBudget, *, device_bytes: int | None, parameter_bytes: int, activation_bytes: int
) -> int:
    """Bytes for the KV cache: those of the budget, or what is left of its share of a GPU.

    device_bytes None is a CPU, whose memory is nobody's to take a share of. Raises ConfigError when
    a CPU's budget names no bytes, or when parameters and activations leave nothing.
    """
    if budget.kv_cache_bytes is not None:
        return budget.kv_cache_bytes
    if device_bytes is None:
        raise ConfigError("a CPU worker needs kv_cache_bytes")
    share = int(device_bytes * budget.gpu_memory_utilization)
    left = share - parameter_bytes - activation_bytes
    if left <= 0:
        raise ConfigError(
            f"gpu_memory_utilization {budget.gpu_memory_utilization} is {share} bytes; parameters "
            f"({parameter_bytes}) and activations ({activation_bytes}) leave none for the KV cache"
        )
    return left
