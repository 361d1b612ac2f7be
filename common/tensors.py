"""Wire tensors: a descriptor and a memoryview, checked for size and shape before anything is allocated.

Knows no torch: dtypes are names with an element size. Bytes are little-endian and contiguous.
"""

import math
import zlib
from dataclasses import dataclass
from enum import Enum

from common.errors import TensorError

MAX_TENSOR_BYTES = 1 << 30
MAX_DIMENSIONS = 8


class DType(Enum):
    """Element type on the wire: (name, bytes per element)."""

    FLOAT32 = ("float32", 4)
    FLOAT16 = ("float16", 2)
    BFLOAT16 = ("bfloat16", 2)
    INT32 = ("int32", 4)
    INT64 = ("int64", 8)
    UINT8 = ("uint8", 1)

    @property
    def label(self) -> str:
        """The usual name, e.g. "bfloat16"."""
        return self.value[0]

    @property
    def num_bytes(self) -> int:
        """Bytes per element."""
        return self.value[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDescriptor:
    """Name, dtype, shape, length and CRC-32 of a tensor on a wire; the making of one checks it.

    Raises TensorError when the shape is negative, has more than MAX_DIMENSIONS extents, or needs
    more than MAX_TENSOR_BYTES, or when num_bytes is not what dtype and shape need.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    num_bytes: int
    checksum: int

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_DIMENSIONS or any(extent < 0 for extent in self.shape):
            raise TensorError(f"tensor {self.name!r} has the impossible shape {list(self.shape)}")
        needed = math.prod(self.shape) * self.dtype.num_bytes
        if needed != self.num_bytes:
            raise TensorError(
                f"tensor {self.name!r} of shape {list(self.shape)} and dtype {self.dtype.label} "
                f"needs {needed} bytes, its descriptor says {self.num_bytes}"
            )
        if needed > MAX_TENSOR_BYTES:
            raise TensorError(
                f"tensor {self.name!r} needs {needed} bytes, the limit is {MAX_TENSOR_BYTES}"
            )


@dataclass(frozen=True, slots=True)
class WireTensor:
    """A descriptor and the bytes it describes; raises TensorError when their number differs."""

    descriptor: TensorDescriptor
    buffer: memoryview

    def __post_init__(self) -> None:
        if self.buffer.nbytes != self.descriptor.num_bytes:
            raise TensorError(
                f"tensor {self.descriptor.name!r} came with {self.buffer.nbytes} bytes "
                f"instead of {self.descriptor.num_bytes}"
            )

    def verify(self) -> None:
        """Raise TensorError unless the CRC-32 of the bytes is the descriptor's."""
        if zlib.crc32(self.buffer) != self.descriptor.checksum:
            raise TensorError(f"tensor {self.descriptor.name!r} is damaged: its checksum differs")


def wire_tensor(
    *, name: str, dtype: DType, shape: tuple[int, ...], buffer: memoryview
) -> WireTensor:
    """Describe contiguous bytes as a tensor; raises TensorError when they do not fit the shape."""
    flat = buffer.cast("B")
    descriptor = TensorDescriptor(
        name=name, dtype=dtype, shape=shape, num_bytes=flat.nbytes, checksum=zlib.crc32(flat)
    )
    return WireTensor(descriptor, flat)
