"""Finding the native kernels, and doing without."""

import logging
import subprocess
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


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_every_task_runs_once(num_threads: int):
    """However fast jobs of different sizes follow each other, late threads take no wrong task."""
    if native_kernels() is None:
        pytest.skip("the extension was not built here")
    # In a process of its own: a pool that waits for ever could not be interrupted.
    program = (
        "from worker_service.kernels.native import native_kernels\n"
        "kernels = native_kernels()\n"
        f"kernels.set_num_threads({num_threads})\n"
        "print(kernels.count_wrong_jobs(100_000))\n"
    )
    tried = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert tried.stdout == "0\n"
