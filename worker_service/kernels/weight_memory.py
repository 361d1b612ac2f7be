"""Memory for packed weights: one behind the other, in huge pages, in the order they are made."""

import torch
from torch import Tensor

from worker_service.kernels.huge_pages import map_huge_pages

_CACHE_LINE = 64


class WeightMemory:
    """Gives out pieces of large mappings; a mapping goes when all of its pieces have gone."""

    def __init__(self, *, mapping_bytes: int = 64 << 20) -> None:
        self._mapping_bytes = mapping_bytes
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """A vector of zeros that begins a cache line."""
        num_bytes = -(-num_elements * dtype.itemsize // _CACHE_LINE) * _CACHE_LINE
        if num_bytes > len(self._free):
            self._free = map_huge_pages(max(num_bytes, self._mapping_bytes))
        piece, self._free = self._free[:num_bytes], self._free[num_bytes:]
        return piece.view(dtype)[:num_elements]
