"""Finding the native kernels, and doing without."""

import logging
import sys

import pytest

from worker_service.kernels.native import NativeKernels, native_kernels


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
