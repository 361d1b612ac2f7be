"""Finding the native kernels, and doing without."""

import logging
import sys

import pytest
import torch

from tests.fakes.native_isa import native_isa
from worker_service.kernels.native import Isa, NativeKernels, native_kernels


def test_a_missing_extension_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """An install without a compiler computes with torch and says so."""
    monkeypatch.setitem(sys.modules, "worker_service.kernels._native", None)
    with caplog.at_level(logging.WARNING):
        assert native_kernels.__wrapped__() is None
    assert [record.getMessage() for record in caplog.records] == [
        "torch computes without native CPU kernels: "
        "import of worker_service.kernels._native halted; None in sys.modules"
    ]


def test_the_extension_has_what_its_face_says():
    """An extension built from older sources is found here, not in the middle of a step."""
    kernels = native_kernels()
    if kernels is None:
        pytest.skip("the extension was not built here")
    declared = {name for name in vars(NativeKernels) if not name.startswith("_")}
    assert declared - set(dir(kernels)) == set()


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_jobs_of_any_size_follow_each_other(num_threads: int):
    """A thread that is late from a small job takes no task of a larger one before it has begun."""
    sizes = [48 * num_blocks for num_blocks in (2, 31, 3, 17)]
    weights = [torch.full((size, 2), float(size)).bfloat16() for size in sizes]
    packed = [torch.zeros(size * 2).bfloat16() for size in sizes]
    with native_isa(Isa.AVX2, num_threads=num_threads) as kernels:
        for _ in range(5000):
            for size, weight, target in zip(sizes, weights, packed, strict=True):
                kernels.pack_bf16(weight.data_ptr(), target.data_ptr(), size, 2)
    assert [target.unique().tolist() for target in packed] == [
        [float(torch.tensor(float(size)).bfloat16())] for size in sizes
    ]
