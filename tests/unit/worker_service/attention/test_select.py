"""Which attention backend a name and a device give."""

import pytest
import torch

from common.errors import ConfigError
from worker_service.attention.select import select_backend


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_torch_runs_on_a_cpu(name: str) -> None:
    """On a CPU the torch backend is what there is."""
    assert select_backend(name, device=torch.device("cpu")).name == "torch"


def test_unknown_backend_is_named() -> None:
    """An unknown name is refused with the names there are."""
    with pytest.raises(ConfigError, match=r"auto, torch, not 'flash'"):
        select_backend("flash", device=torch.device("cpu"))


def test_device_without_compute_is_refused() -> None:
    """The meta device cannot attend."""
    with pytest.raises(ConfigError, match="meta"):
        select_backend("torch", device=torch.device("meta"))
