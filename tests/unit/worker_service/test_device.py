"""The device a worker computes on."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from common.errors import ConfigError
from worker_service.device import bind, find_device
from worker_service.kernels.native import native_kernels


def test_cpu_says_what_it_has() -> None:
    """The CPU is there on every machine, with the machine's memory; float32 is native on all."""
    device = find_device("cpu")
    assert device.name == "cpu"
    assert device.memory_bytes > 1 << 20
    assert device.dtypes[0] == "float32"


@pytest.mark.skipif(native_kernels() is None, reason="the extension was not built here")
def test_native_kernels_make_bfloat16_native() -> None:
    """They multiply bfloat16 weights fast on every instruction set they know."""
    assert "bfloat16" in find_device("cpu").dtypes


def test_auto_finds_a_device() -> None:
    """Without being told, a worker takes the GPU where there is one, else the CPU."""
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_device("auto").torch_device.type == expected


@pytest.mark.parametrize("name", ["tpu", "cuda:one", "cuda:999"])
def test_missing_device_is_refused_by_name(name: str) -> None:
    """A device that torch does not know or does not see is a configuration error."""
    with pytest.raises(ConfigError, match=name):
        find_device(name)


def test_binding_sets_the_compute_threads() -> None:
    """The number of threads asked for is what torch computes with."""
    before = torch.get_num_threads()
    bind(find_device("cpu"), num_threads=before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_waiting_threads_sleep_soon() -> None:
    """Whatever of a worker is imported first, OpenMP is told before torch loads it."""
    script = "import worker_service.worker, os; print(os.environ['GOMP_SPINCOUNT'])"
    asked = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    assert asked.stdout.strip() == "1000"


@pytest.mark.parametrize(("capability", "has_bfloat16"), [((7, 5), False), ((9, 0), True)])
def test_gpu_says_what_it_has(monkeypatch, capability, has_bfloat16) -> None:
    """Memory and types as the driver names them; bfloat16 is computed from capability 8.0 on."""
    properties = SimpleNamespace(total_memory=1 << 34, major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    device = find_device("cuda:1")
    assert device.name == "cuda:1"
    assert device.memory_bytes == 1 << 34
    assert ("bfloat16" in device.dtypes) == has_bfloat16
    with pytest.raises(ConfigError, match="torch sees 2 CUDA devices"):
        find_device("cuda:2")
