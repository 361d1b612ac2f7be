"""The paged KV cache of one pipeline stage: memory only; who owns which block the coordinator knows.

Legend: K key heads, S slots (blocks times block size), D head size.
"""

from typing import Self

import torch
from torch import Tensor

from common.worker_api import KVCacheSpec


class KVCache:
    """Keys and values of every layer of the stage, contents undefined until stored.

    Memory is head-major, [K, blocks, block_size, D] per layer, so that the slots of some blocks
    gather into contiguous [K, slots, D] operands of the attention matmuls.
    """

    def __init__(self, layers: tuple[tuple[Tensor, Tensor], ...]) -> None:
        """Layers as (keys_KSD, values_KSD) pairs."""
        self._layers = layers

    @classmethod
    def allocate(
        cls, spec: KVCacheSpec, *, num_blocks: int, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Reserve num_blocks blocks, the null block 0 included, for all layers of all groups."""
        shapes = [
            (group.num_kv_heads, num_blocks * spec.block_size, group.head_size)
            for group in spec.groups
            for _ in range(group.num_layers)
        ]
        layers = tuple(
            (
                torch.empty(shape, device=device, dtype=dtype),
                torch.empty(shape, device=device, dtype=dtype),
            )
            for shape in shapes
        )
        return cls(layers)

    @property
    def num_layers(self) -> int:
        """Layers of this stage."""
        return len(self._layers)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._layers)

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the stage's layer `layer` (from 0) as the backends read them, [K, S, D]."""
        return self._layers[layer]
