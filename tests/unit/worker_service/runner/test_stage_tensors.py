"""Tensors between stages."""

import numpy as np
import pytest
import torch

from common.errors import TensorError
from common.tensors import DType, wire_tensor
from worker_service.runner.stage_tensors import from_wire, to_wire

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_survives_the_wire_bit_by_bit(dtype):
    """Values, shape and type come back, also from read-only bytes and without a warning."""
    sent = torch.randn(3, 5, generator=torch.Generator().manual_seed(4)).to(dtype)
    (wire,) = to_wire({"hidden_states": sent})
    wire.verify()
    received = wire_tensor(
        name=wire.descriptor.name,
        dtype=wire.descriptor.dtype,
        shape=wire.descriptor.shape,
        buffer=memoryview(bytes(wire.buffer)),
    )
    assert torch.equal(from_wire((received,), CPU)["hidden_states"], sent)


def test_sending_copies_nothing_on_the_cpu():
    """The wire tensor of a contiguous tensor is that tensor's memory."""
    sent = torch.zeros(2, 2)
    (wire,) = to_wire({"hidden_states": sent})
    sent[0, 0] = 1
    assert np.frombuffer(wire.buffer, np.float32)[0] == 1


def test_a_view_is_sent_as_its_own_elements():
    """A tensor that is not contiguous is packed first."""
    sent = torch.arange(6.0).view(2, 3).T
    assert torch.equal(from_wire(to_wire({"x": sent}), CPU)["x"], sent)


def test_receiving_copies_nothing_on_the_cpu():
    """The tensor is the buffer's memory, and keeps the buffer alive."""
    buffer = bytearray(np.arange(4, dtype=np.float32).tobytes())
    wire = wire_tensor(name="x", dtype=DType.FLOAT32, shape=(4,), buffer=memoryview(buffer))
    tensor = from_wire((wire,), CPU)["x"]
    buffer[0:4] = np.float32(9).tobytes()
    del wire, buffer
    assert tensor.tolist() == [9, 1, 2, 3]


def test_misaligned_bytes_are_received_too():
    """A buffer that starts at an odd address gives the same values."""
    buffer = memoryview(b"\x00" + np.arange(4, dtype=np.float32).tobytes())[1:]
    wire = wire_tensor(name="x", dtype=DType.FLOAT32, shape=(2, 2), buffer=buffer)
    tensor = from_wire((wire,), CPU)["x"]
    assert tensor.tolist() == [[0, 1], [2, 3]]
    assert tensor.data_ptr() % 4 == 0


def test_types_that_no_stage_sends_are_refused():
    """Integers neither leave nor arrive."""
    with pytest.raises(TensorError):
        to_wire({"ids": torch.zeros(2, dtype=torch.int64)})
    ids = wire_tensor(name="ids", dtype=DType.INT32, shape=(1,), buffer=memoryview(bytes(4)))
    with pytest.raises(TensorError):
        from_wire((ids,), CPU)


def test_a_name_that_comes_twice_is_refused():
    """Two tensors of one name contradict each other."""
    (wire,) = to_wire({"x": torch.zeros(1)})
    with pytest.raises(TensorError):
        from_wire((wire, wire), CPU)
