"""Chooses the attention backend for a device and a model, or says why none fits."""

import torch

from common.errors import ConfigError
from worker_service.attention.backend import AttentionBackend
from worker_service.attention.torch_backend import TorchBackend

BACKENDS = ("auto", "torch")


def select_backend(name: str, *, device: torch.device) -> AttentionBackend:
    """The backend called `name`, or for "auto" the best one for the device.

    Raises ConfigError naming what can be chosen, or why the choice cannot work on the device.
    """
    if name not in BACKENDS:
        raise ConfigError(f"attention backend must be one of {', '.join(BACKENDS)}, not {name!r}")
    if device.type == "meta":
        raise ConfigError("attention backend torch needs a device that computes, not meta")
    return TorchBackend()
