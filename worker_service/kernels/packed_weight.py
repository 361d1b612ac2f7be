"""What a linear layer holds once it is loaded: a weight, in the form its machine multiplies fastest.

    y_TO = x_TI · w_OIᵀ + bias_O

`PlainWeight` is the reference, on any device. `Bf16Weight` is bfloat16 in the order of
`cpu/linear_bf16.cpp`, which sums in float32 and reads each weight from memory once for all rows.
Integers are in `int8_weight.py` and `int4_weight.py`.

Legend: T rows, I inputs, O outputs.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from common.config import NO_QUANTIZATION, QUANTIZATIONS
from worker_service.kernels.decoder_layers import NativeLinear, WeightKind
from worker_service.kernels.int4_weight import (
    Int4Numbers,
    NativeInt4Weight,
    PlainInt4Weight,
    quantize_int4,
)
from worker_service.kernels.int8_weight import (
    Int8Numbers,
    NativeInt8Weight,
    PlainInt8Weight,
    quantize_int8,
)
from worker_service.kernels.native import NativeKernels, native_kernels
from worker_service.kernels.weight_memory import WeightMemory


class PackedWeight(Protocol):
    """A weight that can do nothing but multiply."""

    def native(self, bias_O: Tensor | None) -> NativeLinear | None:
        """The weight and a bias as native layers take them, bfloat16 in and out; None if they cannot."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        ...

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        ...


WeightPacker = Callable[[Tensor], PackedWeight]
"""Makes a packed weight of a plain one [O, I], which it may keep."""


class PlainWeight:
    """A weight as torch multiplies it."""

    def __init__(self, weight_OI: Tensor) -> None:
        self._weight_OI = weight_OI

    def native(self, bias_O: Tensor | None) -> None:
        """Torch has no part in native layers."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._weight_OI.nbytes

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        return functional.linear(x_TI, self._weight_OI, bias_O).to(dtype or x_TI.dtype)


class Bf16Weight:
    """A bfloat16 weight for the native kernel; outputs may be float32, which are then not rounded."""

    def __init__(self, weight_OI: Tensor, kernels: NativeKernels, memory: WeightMemory) -> None:
        self._num_outputs, self._num_inputs = weight_OI.shape
        self._kernels = kernels
        size = kernels.packed_size_bf16(self._num_outputs, self._num_inputs)
        self._packed = memory.take(size, torch.bfloat16)
        plain = weight_OI.contiguous()
        kernels.pack_bf16(
            plain.data_ptr(), self._packed.data_ptr(), self._num_outputs, self._num_inputs
        )

    def native(self, bias_O: Tensor | None) -> NativeLinear:
        """The weight and a bias as native layers take them."""
        return NativeLinear(
            kind=WeightKind.BF16,
            packed=self._packed,
            num_inputs=self._num_inputs,
            num_outputs=self._num_outputs,
            bias_O=bias_O,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._packed.nbytes

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        assert x_TI.dtype == torch.bfloat16, "packed for the dtype the model computes in"
        assert x_TI.shape[1] == self._num_inputs, "as wide as the weight"
        x_TI = x_TI.contiguous()
        y_TO = torch.empty(x_TI.shape[0], self._num_outputs, dtype=dtype or x_TI.dtype)
        self._kernels.linear_bf16(
            x_TI.data_ptr(),
            self._packed.data_ptr(),
            0 if bias_O is None else bias_O.data_ptr(),
            y_TO.data_ptr(),
            y_TO.dtype == torch.float32,
            x_TI.shape[0],
            self._num_inputs,
            self._num_outputs,
        )
        return y_TO


def quantizations(device: torch.device) -> tuple[str, ...]:
    """The forms of quantized weights a device can hold."""
    return QUANTIZATIONS[1:] if device.type == "cpu" else ()


def head_quantization(quantization: str) -> str:
    """The form of the head beside layers of a form.

    A head of 4 bits costs SmolLM2 6% of perplexity and saves 11 of 152 MB.
    """
    return "int8" if quantization == "int4" else quantization


def select_packer(
    *, dtype: torch.dtype, device: torch.device, quantization: str = NO_QUANTIZATION
) -> WeightPacker | None:
    """Choose how layers that compute in dtype on device hold their weights; None is as loaded."""
    kernels = native_kernels() if device.type == "cpu" else None
    memory = WeightMemory()
    if quantization == "int8":
        return lambda weight_OI: _int8_weight(quantize_int8(weight_OI), kernels, memory)
    if quantization == "int4":
        return lambda weight_OI: _int4_weight(quantize_int4(weight_OI), kernels, memory)
    if kernels is None or dtype != torch.bfloat16:
        return None
    return lambda weight_OI: Bf16Weight(weight_OI, kernels, memory)


def _int8_weight(
    numbers: Int8Numbers, kernels: NativeKernels | None, memory: WeightMemory
) -> PackedWeight:
    if kernels is None:
        return PlainInt8Weight(numbers)
    return NativeInt8Weight(numbers, kernels, memory)


def _int4_weight(
    numbers: Int4Numbers, kernels: NativeKernels | None, memory: WeightMemory
) -> PackedWeight:
    if kernels is None:
        return PlainInt4Weight(numbers)
    return NativeInt4Weight(numbers, kernels, memory)
