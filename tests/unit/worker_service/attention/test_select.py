"""Which attention backend a name, a device and a model give."""

import pytest
import torch

from common.errors import ConfigError
from worker_service.attention.select import select_backend
from worker_service.kernels.native import native_kernels
from worker_service.kernels.triton_use import runs_triton, stop_interpreting

CPU = torch.device("cpu")


def name_of(
    name: str, *, dtype: torch.dtype = torch.bfloat16, head_size: int = 64, device: str = "cpu"
) -> str:
    """The name of the backend that is chosen."""
    chosen = select_backend(name, device=torch.device(device), dtype=dtype, head_size=head_size)
    return chosen.name


def test_torch_is_there_for_who_asks() -> None:
    """The reference can always be had on a CPU."""
    assert name_of("torch") == "torch"


@pytest.mark.skipif(native_kernels() is None, reason="the extension was not built here")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_native_kernels_are_the_best_on_a_cpu(dtype: torch.dtype) -> None:
    """Where they are built and know the dtype they are chosen, by name or without."""
    assert name_of("auto", dtype=dtype) == name_of("cpu", dtype=dtype) == "cpu"


@pytest.mark.parametrize(
    "model", [{"dtype": torch.float16}, {"head_size": 24}], ids=["dtype", "head size"]
)
def test_what_the_kernels_cannot_do_is_left_to_torch(model: dict[str, object]) -> None:
    """A dtype or a head size they do not know; asked for by name, it is an error that says why."""
    assert name_of("auto", **model) == "torch"
    with pytest.raises(
        ConfigError, match=r"no attention backend fits: cpu (computes in|needs a head)"
    ):
        name_of("cpu", **model)


def test_a_gpu_gets_triton() -> None:
    """By itself; the CPU's kernels cannot serve there, and say so."""
    assert name_of("auto", device="cuda") == "triton"
    with pytest.raises(ConfigError, match="cpu needs cpu, not cuda"):
        name_of("cpu", device="cuda")


def test_triton_is_interpreted_for_who_asks() -> None:
    """By name alone, as it is slow; then every kernel of the process is Triton's."""
    x = torch.zeros(1)
    try:
        assert name_of("triton") == "triton"
        assert runs_triton(x)
    finally:
        stop_interpreting()
    assert not runs_triton(x)


def test_no_backend_says_why() -> None:
    """Every backend's reason stands in the error."""
    with pytest.raises(
        ConfigError, match=r"triton computes in .*; cpu computes .*; torch computes"
    ):
        name_of("auto", dtype=torch.float64)


def test_unknown_backend_is_named() -> None:
    """An unknown name is refused with the names there are."""
    with pytest.raises(ConfigError, match=r"auto, triton, cpu, torch, not 'flash'"):
        name_of("flash")


def test_device_without_compute_is_refused() -> None:
    """The meta device cannot attend."""
    with pytest.raises(ConfigError, match="torch needs cpu or cuda, not meta"):
        name_of("torch", device="meta")
