"""Memory in pages of 2 MiB, for what every step reads from end to end.

Ordinary pages have 4 KiB, and each must be looked up as it is read. Where the system has no huge
pages to give, it gives ordinary ones.
"""

import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20


def map_huge_pages(num_bytes: int) -> Tensor:
    """Zeros, uint8, that begin a huge page; memory is taken as they are written to."""
    num_bytes = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + num_bytes]
