"""Reused memory for the slots of one tile.

A step gathers tiles of megabytes once or more per layer; memory fresh from the allocator would cost
more in page faults than the copy itself.

Legend: K key heads, S slots of the cache, F slots of a tile, D head size.
"""

import torch
from torch import Tensor


class GatherBuffer:
    """Holds the tile gathered last; used by one thread."""

    def __init__(self) -> None:
        self._memory_by_dtype: dict[torch.dtype, Tensor] = {}

    def gather(self, cache_KSD: Tensor, slots_F: Tensor) -> Tensor:
        """Copy slots of the cache; float32 [K, F, D], overwritten by the next call."""
        num_kv_heads, _, head_size = cache_KSD.shape
        shape = (num_kv_heads, len(slots_F), head_size)
        tile_KFD = self._view(shape, like=cache_KSD, dtype=cache_KSD.dtype)
        torch.index_select(cache_KSD, 1, slots_F, out=tile_KFD)
        if cache_KSD.dtype == torch.float32:
            return tile_KFD
        return self._view(shape, like=cache_KSD, dtype=torch.float32).copy_(tile_KFD)

    def _view(self, shape: tuple[int, int, int], *, like: Tensor, dtype: torch.dtype) -> Tensor:
        size = shape[0] * shape[1] * shape[2]
        memory = self._memory_by_dtype.get(dtype)
        if memory is None or len(memory) < size or memory.device != like.device:
            memory = torch.empty(size, dtype=dtype, device=like.device)
            self._memory_by_dtype[dtype] = memory
        return memory[:size].view(shape)
