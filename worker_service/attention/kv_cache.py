"""The paged KV cache of one pipeline stage: memory only; who owns which block the coordinator knows.

Legend: K key heads, S slots (blocks times block size), D head size.
"""

import math
from typing import Self

import torch
from torch import Tensor

from common.worker_api import KVCacheSpec
from worker_service.attention.layer_groups import LayerGroups
from worker_service.kernels.huge_pages import map_huge_pages


class KVCache:
    """Keys and values of every layer of the stage, contents undefined until stored.

    Layers of different block tables may have the same place in a block, as it belongs to one table.
    Memory is head-major, [K, blocks, block_size, D] per layer, so that the slots of some blocks
    gather into contiguous [K, slots, D] operands of the attention matmuls.
    """

    def __init__(
        self, places: tuple[tuple[Tensor, Tensor], ...], groups: LayerGroups | None = None
    ) -> None:
        """Places of a block as (keys_KSD, values_KSD) pairs; without groups each is a layer's."""
        groups = groups or LayerGroups.one(len(places))
        self._places = places
        self._layers = tuple(places[place] for place in groups.places)
        self.groups = groups
        addresses = [tensor.data_ptr() for pair in self._layers for tensor in pair]
        self._addresses = torch.tensor(addresses, dtype=torch.int64)

    @classmethod
    def allocate(
        cls,
        spec: KVCacheSpec,
        *,
        num_blocks: int,
        device: torch.device,
        dtype: torch.dtype,
        groups: LayerGroups | None = None,
    ) -> Self:
        """Reserve num_blocks blocks, the null block 0 included, for all layers the spec counts.

        groups: which layers share those; None: none do.
        """
        shapes = [
            (group.num_kv_heads, num_blocks * spec.block_size, group.head_size)
            for group in spec.groups
            for _ in range(group.num_layers)
        ]
        num_elements = 2 * sum(math.prod(shape) for shape in shapes)
        # One piece: small tensors of their own would share no huge pages.
        if device.type == "cpu":
            whole = map_huge_pages(num_elements * dtype.itemsize).view(dtype)[:num_elements]
        else:
            whole = torch.empty(num_elements, device=device, dtype=dtype)
        pieces = whole.split([math.prod(shape) for shape in shapes for _ in range(2)])
        keys = [piece.view(shape) for piece, shape in zip(pieces[0::2], shapes, strict=True)]
        values = [piece.view(shape) for piece, shape in zip(pieces[1::2], shapes, strict=True)]
        return cls(tuple(zip(keys, values, strict=True)), groups)

    @property
    def num_layers(self) -> int:
        """Layers of this stage."""
        return len(self._layers)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._places)

    @property
    def addresses(self) -> Tensor:
        """Where each layer's keys and values begin; int64, on the host."""
        return self._addresses

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the stage's layer `layer` (from 0) as the backends read them, [K, S, D]."""
        return self._layers[layer]
