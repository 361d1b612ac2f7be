"""Wire tensors: made from bytes, checked against their descriptor."""

from dataclasses import replace

import numpy as np
import pytest

from common.errors import TensorError
from common.tensors import (
    MAX_TENSOR_BYTES,
    DType,
    TensorDescriptor,
    WireTensor,
    wire_tensor,
)


def test_any_contiguous_buffer():
    """Multi-dimensional contiguous memory is described as flat bytes, without a copy."""
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    tensor = wire_tensor(name="h", dtype=DType.INT32, shape=(2, 3), buffer=memoryview(array))
    tensor.verify()
    assert tensor.buffer.nbytes == tensor.descriptor.num_bytes == 24
    array[0, 0] = 7
    assert tensor.buffer[0] == 7


def test_buffer_that_does_not_fit():
    """Bytes that do not fill the shape are refused when the tensor is made."""
    with pytest.raises(TensorError, match="needs 8 bytes, its descriptor says 6"):
        wire_tensor(name="h", dtype=DType.BFLOAT16, shape=(4,), buffer=memoryview(b"123456"))


def test_too_large():
    """A tensor over the limit is refused by its descriptor alone."""
    size = MAX_TENSOR_BYTES + 1
    with pytest.raises(TensorError, match="the limit is"):
        TensorDescriptor(name="h", dtype=DType.UINT8, shape=(size,), num_bytes=size, checksum=0)


def test_wrong_length():
    """Bytes of another length than described make no tensor."""
    good = wire_tensor(name="h", dtype=DType.UINT8, shape=(3,), buffer=memoryview(b"abc"))
    with pytest.raises(TensorError, match="'h' came with 2 bytes instead of 3"):
        WireTensor(good.descriptor, memoryview(b"ab"))


def test_verify_notices_content():
    """A changed byte or checksum fails the check, naming the tensor."""
    good = wire_tensor(name="h", dtype=DType.UINT8, shape=(3,), buffer=memoryview(b"abc"))
    with pytest.raises(TensorError, match="'h' is damaged"):
        WireTensor(good.descriptor, memoryview(b"abd")).verify()
    with pytest.raises(TensorError, match="damaged"):
        WireTensor(replace(good.descriptor, checksum=1), good.buffer).verify()
