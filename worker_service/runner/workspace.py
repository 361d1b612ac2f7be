"""Memory that captured graphs read and write: at the same address from the capture on."""

import math

import torch
from torch import Tensor


class WorkspaceLocked(RuntimeError):
    """Memory was asked for that no graph was captured with."""


class Workspace:
    """Named buffers that only grow; once locked, they do not even that."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._is_locked = False

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The first elements of a buffer, zero when it is made.

        A larger shape moves the buffer, so the largest is asked for first. Raises WorkspaceLocked when
        the buffer would have to be made, or moved, although graphs have been captured.
        """
        count = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count or buffer.dtype != dtype:
            if self._is_locked:
                raise WorkspaceLocked(f"{name} of shape {list(shape)} was not there at the capture")
            buffer = self._buffers[name] = torch.zeros(count, dtype=dtype, device=self._device)
        return buffer[:count].view(shape)

    def lock(self) -> None:
        """From here on every buffer stays where and as large as it is."""
        self._is_locked = True

    def clear(self) -> None:
        """Give everything back and unlock."""
        self._buffers.clear()
        self._is_locked = False
