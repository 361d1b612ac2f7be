"""Which attention backend a name, a device and a model give."""

import pytest
import torch

from common.errors import ConfigError
from worker_service.attention.select import select_backend
from worker_service.kernels.native import native_kernels

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
    "model",
    [{"dtype": torch.float16}, {"head_size": 24}, {"device": "cuda"}],
    ids=["dtype", "head size", "device"],
)
def test_what_the_kernels_cannot_do_is_left_to_torch(model: dict[str, object]) -> None:
    """A dtype, a head size or a device they do not know; asked for by name, it is an error."""
    assert name_of("auto", **model) == "torch"
    with pytest.raises(ConfigError, match="attention backend cpu"):
        name_of("cpu", **model)


def test_unknown_backend_is_named() -> None:
    """An unknown name is refused with the names there are."""
    with pytest.raises(ConfigError, match=r"auto, torch, cpu, not 'flash'"):
        name_of("flash")


def test_device_without_compute_is_refused() -> None:
    """The meta device cannot attend."""
    with pytest.raises(ConfigError, match="meta"):
        name_of("torch", device="meta")
