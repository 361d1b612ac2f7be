"""Weights as 8-bit integers with one scale an output.

    q_OI = round(w_OI / scale_O), scale_O = max |w_OI| / 127        y_TO = scale_O · (x_TI · q_OIᵀ)

`PlainInt8Weight` is the reference, on any device. `NativeInt8Weight` is in the order of
`cpu/linear_int8.cpp`, which makes bfloat16 of the integers without rounding and sums in float32.

Legend: T rows, I inputs, O outputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.decoder_layers import NativeLinear, WeightKind
from worker_service.kernels.native import NativeKernels
from worker_service.kernels.quantized_rows import NativeProduct
from worker_service.kernels.weight_memory import WeightMemory

_LARGEST = 127
_ROWS_AT_ONCE = 4096  # whose float32 copies are in memory together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int8Numbers:
    """The integers of a weight and the float32 scale of each output."""

    q_OI: Tensor
    scale_O: Tensor

    def plain(self) -> Tensor:
        """The weight they stand for; float32 [O, I]."""
        return self.q_OI * self.scale_O[:, None]


def quantize_int8(w_OI: Tensor) -> Int8Numbers:
    """The nearest integers; outputs without a weight other than zero have scale 0."""
    parts = [_quantize(rows_OI.float()) for rows_OI in w_OI.split(_ROWS_AT_ONCE)]
    return Int8Numbers(
        q_OI=torch.cat([part.q_OI for part in parts]),
        scale_O=torch.cat([part.scale_O for part in parts]),
    )


def _quantize(w_OI: Tensor) -> Int8Numbers:
    scale_O = w_OI.abs().amax(dim=1) / _LARGEST
    divisor_O = scale_O.where(scale_O > 0, 1)
    q_OI = (w_OI / divisor_O[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
    return Int8Numbers(q_OI=q_OI.to(torch.int8), scale_O=scale_O)


class PlainInt8Weight:
    """8-bit integers as torch multiplies them."""

    def __init__(self, numbers: Int8Numbers) -> None:
        self._numbers = numbers

    def native(self, bias_O: Tensor | None) -> None:
        """Torch has no part in native layers."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._numbers.q_OI.nbytes + self._numbers.scale_O.nbytes

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        w_OI = self._numbers.plain().to(x_TI.dtype)
        return functional.linear(x_TI, w_OI, bias_O).to(dtype or x_TI.dtype)


class NativeInt8Weight(NativeProduct):
    """8-bit integers for the native kernel."""

    def __init__(self, numbers: Int8Numbers, kernels: NativeKernels, memory: WeightMemory) -> None:
        super().__init__(numbers.q_OI.shape, kernels)
        shape = (self.num_outputs, self.num_inputs)
        self._packed = memory.take(kernels.packed_size_int8(*shape), torch.uint8)
        self._scale_O = numbers.scale_O
        q_OI = numbers.q_OI.contiguous()
        kernels.pack_int8(q_OI.data_ptr(), self._packed.data_ptr(), *shape)

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._packed.nbytes + self._scale_O.nbytes

    def _describe(self, bias_O: Tensor | None) -> NativeLinear:
        return NativeLinear(
            kind=WeightKind.INT8,
            packed=self._packed,
            scale_O=self._scale_O,
            num_inputs=self.num_inputs,
            num_outputs=self.num_outputs,
            bias_O=bias_O,
        )

    def _run(self, x_TI: Tensor, bias_O: Tensor | None, y_TO: Tensor) -> None:
        self.kernels.linear_int8(
            x_TI.dtype == torch.bfloat16,
            x_TI.data_ptr(),
            self._packed.data_ptr(),
            self._scale_O.data_ptr(),
            0 if bias_O is None else bias_O.data_ptr(),
            y_TO.data_ptr(),
            y_TO.dtype == torch.float32,
            x_TI.shape[0],
            x_TI.shape[1],
            self.num_outputs,
        )
