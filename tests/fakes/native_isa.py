"""Runs native kernels on a chosen instruction set and number of threads, and puts both back."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker_service.kernels.native import Isa, NativeKernels, native_kernels


@contextmanager
def native_isa(isa: Isa, *, num_threads: int) -> Iterator[NativeKernels]:
    """The kernels; skips the test where they were not built or the machine lacks the set."""
    kernels = native_kernels()
    if kernels is None:
        pytest.skip("the extension was not built here")
    best, former_threads = kernels.isa(), kernels.num_threads()
    if not kernels.use_isa(isa):
        pytest.skip(f"this machine has no {isa.name}")
    kernels.set_num_threads(num_threads)
    try:
        yield kernels
    finally:
        kernels.set_num_threads(former_threads)
        kernels.use_isa(best)
