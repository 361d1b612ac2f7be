"""Columns: arrays of little-endian integers or floats in protobuf `bytes` fields.

Decoding gives read-only views of the message's bytes, after their length was checked; every error
is an InvalidStep that names the field.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from stepwire.v1 import step_pb2 as pb

from common.errors import InvalidStep
from common.step import Int32s, Ragged

INT32 = np.dtype("<i4")
UINT32 = np.dtype("<u4")
UINT64 = np.dtype("<u8")
FLOAT32 = np.dtype("<f4")

Scalar = TypeVar("Scalar", bound=np.generic)


def encode_column(values: NDArray[Any], dtype: "np.dtype[Any]") -> bytes:
    """The bytes of a one- or two-dimensional array, row by row."""
    return values.astype(dtype, copy=False).tobytes()


def decode_column(
    column: bytes, dtype: "np.dtype[Scalar]", *, field: str, length: int | None = None
) -> NDArray[Scalar]:
    """View the bytes as an array; `length` is how many entries there must be, if that is known."""
    if len(column) % dtype.itemsize:
        raise InvalidStep(
            f"{field}: {len(column)} bytes are not a whole number of {dtype.itemsize}-byte entries"
        )
    values = np.frombuffer(column, dtype=dtype)
    if length is not None and len(values) != length:
        raise InvalidStep(f"{field}: {len(values)} entries where {length} are due")
    return values


def encode_ragged(ragged: Ragged) -> pb.RaggedColumn:
    """Spell a ragged int32 column."""
    return pb.RaggedColumn(
        values=encode_column(ragged.values, INT32), offsets=encode_column(ragged.offsets, UINT32)
    )


def decode_ragged(column: pb.RaggedColumn, *, field: str, num_rows: int | None = None) -> Ragged:
    """View a ragged int32 column; `num_rows` is how many rows there must be, if that is known."""
    values = decode_column(column.values, INT32, field=f"{field}.values")
    offsets = decode_column(
        column.offsets,
        UINT32,
        field=f"{field}.offsets",
        length=None if num_rows is None else num_rows + 1,
    )
    if len(offsets) == 0 or offsets[0] != 0:
        raise InvalidStep(f"{field}.offsets: the first entry must be there and 0")
    if offsets[-1] != len(values):
        raise InvalidStep(
            f"{field}.offsets: the last entry is {offsets[-1]}, there are {len(values)} values"
        )
    if (offsets[1:] < offsets[:-1]).any():
        raise InvalidStep(f"{field}.offsets: the entries decrease")
    return Ragged(values, offsets)


def encode_optional_ragged(ragged: Ragged | None) -> pb.RaggedColumn | None:
    """Spell a ragged int32 column that may be absent."""
    return None if ragged is None else encode_ragged(ragged)


def encode_rows(rows: tuple[Int32s, ...]) -> pb.RaggedColumn:
    """Spell a few arrays as the rows of one ragged column."""
    return encode_ragged(Ragged.from_rows(list(rows)))


def decode_rows(column: pb.RaggedColumn, *, field: str) -> tuple[Int32s, ...]:
    """View every row of a ragged column as an array."""
    ragged = decode_ragged(column, field=field)
    return tuple(ragged.row(index) for index in range(ragged.num_rows))
