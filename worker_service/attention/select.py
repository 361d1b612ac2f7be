"""Chooses the attention backend for a device and a model, or says why none fits."""

import torch

from common.errors import ConfigError
from worker_service.attention.backend import AttentionBackend
from worker_service.attention.cpu_backend import make_cpu_backend
from worker_service.attention.torch_backend import TorchBackend

BACKENDS = ("auto", "torch", "cpu")


def select_backend(
    name: str, *, device: torch.device, dtype: torch.dtype, head_size: int
) -> AttentionBackend:
    """The backend called `name`, or for "auto" the best one for the device and the model.

    Raises ConfigError naming what can be chosen, or why the choice cannot work.
    """
    if name not in BACKENDS:
        raise ConfigError(f"attention backend must be one of {', '.join(BACKENDS)}, not {name!r}")
    if device.type == "meta":
        raise ConfigError("attention needs a device that computes, not meta")
    if name == "torch":
        return TorchBackend()
    native = make_cpu_backend(device=device, dtype=dtype, head_size=head_size)
    if not isinstance(native, ConfigError):
        return native
    if name == "cpu":
        raise native
    return TorchBackend()
