"""Tensors between stages: torch tensors <-> wire tensors, without a copy on the CPU.

A wire tensor made here shares the tensor's memory, which must not be written until it is sent.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import TensorError
from common.tensors import DType, WireTensor, wire_tensor

_WIRE_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}
_TORCH_DTYPES = {wire: own for own, wire in _WIRE_DTYPES.items()}


def to_wire(tensors: dict[str, Tensor]) -> tuple[WireTensor, ...]:
    """Describe tensors of a floating-point type by name; raises TensorError for another type."""
    return tuple(_to_wire(name, tensor) for name, tensor in tensors.items())


def from_wire(tensors: tuple[WireTensor, ...], device: torch.device) -> dict[str, Tensor]:
    """Tensors by name on the device, the bytes already verified; read only, as the buffers may be.

    Raises TensorError for a type that no stage sends and for a name that comes twice.
    """
    received = {tensor.descriptor.name: _from_wire(tensor, device) for tensor in tensors}
    if len(received) != len(tensors):
        raise TensorError("two tensors of a step have the same name")
    return received


def _to_wire(name: str, tensor: Tensor) -> WireTensor:
    dtype = _WIRE_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TensorError(f"tensor {name!r} is {tensor.dtype}, which does not travel")
    # numpy knows no bfloat16, so the elements go as bytes.
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return wire_tensor(name=name, dtype=dtype, shape=tuple(tensor.shape), buffer=flat.data)


def _from_wire(tensor: WireTensor, device: torch.device) -> Tensor:
    descriptor = tensor.descriptor
    dtype = _TORCH_DTYPES.get(descriptor.dtype)
    if dtype is None:
        raise TensorError(
            f"tensor {descriptor.name!r} is {descriptor.dtype.label}, which no stage sends"
        )
    flat = torch.from_numpy(_as_array(tensor.buffer, alignment=descriptor.dtype.num_bytes))
    return flat.view(dtype).view(descriptor.shape).to(device)


class _SharedBytes:
    """Offers a buffer to numpy as writable memory and keeps it alive.

    torch warns of every read-only buffer, since it has no read-only tensors. Nobody here writes to
    what was received.
    """

    def __init__(self, buffer: memoryview) -> None:
        address = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
        self._buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (buffer.nbytes,),
            "data": (address, False),
        }


def _as_array(buffer: memoryview, *, alignment: int) -> NDArray[np.uint8]:
    """The bytes where they are, or a copy when elements of that size would be misaligned."""
    array = np.asarray(_SharedBytes(buffer))
    return array.copy() if array.ctypes.data % alignment else array
