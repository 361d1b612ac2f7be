"""Weights as 4-bit integers, with a scale and a center for each output's groups of 32 inputs.

    w ≈ scale · (q - 8) + center, q of 0 ... 15        y = Σ scale · Σ x (q - 8) + center · Σ x

Scale and center are bfloat16, so a weight takes 5 bits. `PlainInt4Weight` is the reference, on any
device. `NativeInt4Weight` is in the order of `cpu/linear_int4.cpp`, which sums in float32.

Legend: T rows, I inputs, O outputs, G groups, M inputs of a group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.decoder_layers import NativeLinear, WeightKind
from worker_service.kernels.native import NativeKernels
from worker_service.kernels.quantized_rows import NativeProduct
from worker_service.kernels.weight_memory import WeightMemory

GROUP_SIZE = 32

_LARGEST = 15
_MIDDLE = 8
_ROWS_AT_ONCE = 4096  # whose float32 copies are in memory together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int4Numbers:
    """The integers of a weight, one a byte, and the bfloat16 scale and center of each group."""

    q_OI: Tensor
    scale_OG: Tensor
    center_OG: Tensor

    def plain(self) -> Tensor:
        """The weight they stand for; float32 [O, I]."""
        q_OGM = _groups(self.q_OI.float() - _MIDDLE)
        w_OGM = q_OGM * self.scale_OG.float()[..., None] + self.center_OG.float()[..., None]
        return w_OGM.flatten(1)[:, : self.q_OI.shape[1]]


def quantize_int4(w_OI: Tensor) -> Int4Numbers:
    """Spread the integers evenly from a group's smallest weight to its largest."""
    parts = [_quantize(rows_OI) for rows_OI in w_OI.split(_ROWS_AT_ONCE)]
    return Int4Numbers(
        q_OI=torch.cat([part.q_OI for part in parts]),
        scale_OG=torch.cat([part.scale_OG for part in parts]),
        center_OG=torch.cat([part.center_OG for part in parts]),
    )


def _quantize(w_OI: Tensor) -> Int4Numbers:
    w_OGM = _groups(w_OI.float())
    low_OG, high_OG = w_OGM.amin(dim=-1), w_OGM.amax(dim=-1)
    scale_OG = ((high_OG - low_OG) / _LARGEST).bfloat16()
    # Code 8 stands half a step above the middle of 0 ... 15.
    center_OG = ((low_OG + high_OG + scale_OG) / 2).bfloat16()
    # The rounded numbers are those that will multiply, so the integers make up for the rounding.
    divisor_OG = scale_OG.float().where(scale_OG > 0, 1)
    q_OGM = (w_OGM - center_OG.float()[..., None]) / divisor_OG[..., None]
    q_OGM = q_OGM.add_(_MIDDLE).round_().clamp_(0, _LARGEST).to(torch.uint8)
    return Int4Numbers(
        q_OI=q_OGM.flatten(1)[:, : w_OI.shape[1]], scale_OG=scale_OG, center_OG=center_OG
    )


def _groups(x_OI: Tensor) -> Tensor:
    """[O, G, M]; the last group is filled up with its last input, which changes no extreme."""
    missing = -x_OI.shape[1] % GROUP_SIZE
    if missing:
        x_OI = torch.cat([x_OI, x_OI[:, -1:].expand(-1, missing)], dim=1)
    return x_OI.unflatten(1, (-1, GROUP_SIZE))


class PlainInt4Weight:
    """4-bit integers as torch multiplies them: two of them a byte, unpacked at each product."""

    def __init__(self, numbers: Int4Numbers) -> None:
        q_OI = functional.pad(numbers.q_OI, (0, numbers.q_OI.shape[1] % 2))
        self._num_inputs = numbers.q_OI.shape[1]
        self._pairs = q_OI[:, ::2] | q_OI[:, 1::2] << 4
        self._scale_OG, self._center_OG = numbers.scale_OG, numbers.center_OG

    def native(self, bias_O: Tensor | None) -> None:
        """Torch has no part in native layers."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._pairs.nbytes + self._scale_OG.nbytes + self._center_OG.nbytes

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        q_OI = torch.stack([self._pairs & 15, self._pairs >> 4], dim=-1).flatten(1)
        numbers = Int4Numbers(
            q_OI=q_OI[:, : self._num_inputs],
            scale_OG=self._scale_OG,
            center_OG=self._center_OG,
        )
        w_OI = numbers.plain().to(x_TI.dtype)
        return functional.linear(x_TI, w_OI, bias_O).to(dtype or x_TI.dtype)


class NativeInt4Weight(NativeProduct):
    """4-bit integers for the native kernel."""

    def __init__(self, numbers: Int4Numbers, kernels: NativeKernels, memory: WeightMemory) -> None:
        super().__init__(numbers.q_OI.shape, kernels)
        shape = (self.num_outputs, self.num_inputs)
        self._packed = memory.take(kernels.packed_size_int4(*shape), torch.uint8)
        q_OI = numbers.q_OI.contiguous()
        kernels.pack_int4(
            q_OI.data_ptr(),
            numbers.scale_OG.data_ptr(),
            numbers.center_OG.data_ptr(),
            self._packed.data_ptr(),
            *shape,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes it takes."""
        return self._packed.nbytes

    def _describe(self, bias_O: Tensor | None) -> NativeLinear:
        return NativeLinear(
            kind=WeightKind.INT4,
            packed=self._packed,
            num_inputs=self.num_inputs,
            num_outputs=self.num_outputs,
            bias_O=bias_O,
        )

    def _run(self, x_TI: Tensor, bias_O: Tensor | None, y_TO: Tensor) -> None:
        self.kernels.linear_int4(
            x_TI.dtype == torch.bfloat16,
            x_TI.data_ptr(),
            self._packed.data_ptr(),
            0 if bias_O is None else bias_O.data_ptr(),
            y_TO.data_ptr(),
            y_TO.dtype == torch.float32,
            x_TI.shape[0],
            x_TI.shape[1],
            self.num_outputs,
        )
