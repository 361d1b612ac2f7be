"""Protobuf spelling of `common.tensors`; malformed descriptors raise TensorError."""

from collections.abc import Iterable, Sequence

from stepwire.v1 import tensor_pb2 as pb

from common.errors import TensorError
from common.tensors import DType, TensorDescriptor, WireTensor

_ELEMENT_TYPE = {
    DType.FLOAT32: pb.ELEMENT_TYPE_FLOAT32,
    DType.FLOAT16: pb.ELEMENT_TYPE_FLOAT16,
    DType.BFLOAT16: pb.ELEMENT_TYPE_BFLOAT16,
    DType.INT32: pb.ELEMENT_TYPE_INT32,
    DType.INT64: pb.ELEMENT_TYPE_INT64,
    DType.UINT8: pb.ELEMENT_TYPE_UINT8,
}
_DTYPE = {element_type: dtype for dtype, element_type in _ELEMENT_TYPE.items()}


def encode_descriptor(descriptor: TensorDescriptor) -> pb.TensorDescriptor:
    """Spell a descriptor."""
    return pb.TensorDescriptor(
        name=descriptor.name,
        dtype=_ELEMENT_TYPE[descriptor.dtype],
        shape=descriptor.shape,
        num_bytes=descriptor.num_bytes,
        checksum=descriptor.checksum,
    )


def decode_descriptor(descriptor: pb.TensorDescriptor) -> TensorDescriptor:
    """Read a descriptor; its own checks of shape and size apply."""
    dtype = _DTYPE.get(descriptor.dtype)
    if dtype is None:
        raise TensorError(
            f"tensor {descriptor.name!r} has the unknown element type {descriptor.dtype}"
        )
    return TensorDescriptor(
        name=descriptor.name,
        dtype=dtype,
        shape=tuple(descriptor.shape),
        num_bytes=descriptor.num_bytes,
        checksum=descriptor.checksum,
    )


def decode_descriptors(
    descriptors: Iterable[pb.TensorDescriptor],
) -> tuple[TensorDescriptor, ...]:
    """Read descriptors, whose names must differ."""
    decoded = tuple(decode_descriptor(descriptor) for descriptor in descriptors)
    if len({descriptor.name for descriptor in decoded}) != len(decoded):
        raise TensorError(f"tensor names repeat: {[descriptor.name for descriptor in decoded]}")
    return decoded


def pair_with_buffers(
    descriptors: Sequence[TensorDescriptor], buffers: Sequence[memoryview]
) -> tuple[WireTensor, ...]:
    """Join descriptors with the bytes that came for them, whose count and lengths must fit.

    The checksums stay for the reader to verify.
    """
    if len(buffers) != len(descriptors):
        raise TensorError(f"{len(buffers)} payloads came for {len(descriptors)} tensors")
    return tuple(
        WireTensor(descriptor, buffer)
        for descriptor, buffer in zip(descriptors, buffers, strict=True)
    )
