"""Memory for packed weights: one behind the other in the order they are made, in huge pages.

A decode step reads all weights once, so every page of 4 KiB would be looked up in every step; pages
of 2 MiB spare most of that. Where the system has none to give, it gives ordinary ones.
"""

import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
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
            self._free = _map(max(num_bytes, self._mapping_bytes))
        piece, self._free = self._free[:num_bytes], self._free[num_bytes:]
        return piece.view(dtype)[:num_elements]


def _map(num_bytes: int) -> Tensor:
    """Zeros that begin a huge page; memory is taken as it is written to."""
    num_bytes = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + num_bytes]
