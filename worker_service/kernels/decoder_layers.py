"""All decoder layers of a stage in one native call, for bfloat16 models whose weights are packed.

A decode step of a few rows takes some milliseconds, and calling hundreds of kernels one by one would
take a good part of them. The reference are the layers of `models/decoder.py`: same kernels, same
order, same bits.

Legend: T tokens, I inputs, O outputs, D model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from worker_service.kernels.native import NativeKernels


class WeightKind(IntEnum):
    """Which kernel multiplies by a weight."""

    BF16 = 0
    INT8 = 1
    INT4 = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NativeLinear:
    """A packed weight and a bias as kernels read them; the scale is that of int8."""

    kind: WeightKind
    packed: Tensor
    num_inputs: int
    num_outputs: int
    scale_O: Tensor | None = None
    bias_O: Tensor | None = None

    @property
    def fields(self) -> tuple[int, ...]:
        """The LinearWeight of cpu/decoder_layers.h."""
        return (
            self.kind,
            self.packed.data_ptr(),
            0 if self.scale_O is None else self.scale_O.data_ptr(),
            0 if self.bias_O is None else self.bias_O.data_ptr(),
            self.num_inputs,
            self.num_outputs,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NativeLayer:
    """The weights of one decoder layer."""

    attention_norm_D: Tensor
    mlp_norm_D: Tensor
    qkv: NativeLinear
    output: NativeLinear
    gate_up: NativeLinear
    down: NativeLinear

    @property
    def fields(self) -> tuple[int, ...]:
        """The DecoderLayer of cpu/decoder_layers.h."""
        norms = (self.attention_norm_D.data_ptr(), self.mlp_norm_D.data_ptr())
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return norms + tuple(field for linear in linears for field in linear.fields)

    @property
    def room(self) -> int:
        """Elements a token needs between the kernels: its norm, and the widest two after it."""
        attention = self.qkv.num_outputs + self.output.num_inputs
        mlp = self.gate_up.num_outputs + self.down.num_inputs
        return self.qkv.num_inputs + max(attention, mlp)


class NativeLayers:
    """The decoder layers of a stage."""

    def __init__(
        self, layers: Sequence[NativeLayer], *, eps: float, kernels: NativeKernels
    ) -> None:
        self._layers = tuple(layers)
        self._fields = torch.tensor([layer.fields for layer in layers], dtype=torch.int64)
        self._room = max(layer.room for layer in layers)
        self._eps = eps
        self._kernels = kernels

    def run(self, hidden_TD: Tensor, *, step: Tensor, keys_and_values: Tensor) -> Tensor:
        """Run the layers on hidden states, which are left alone; [T, D].

        step int64: an AttentionStep; keys_and_values int64: addresses, two a layer.
        """
        hidden_TD = hidden_TD.contiguous()
        added_TD, residual_TD = torch.empty_like(hidden_TD), torch.empty_like(hidden_TD)
        room = hidden_TD.new_empty(hidden_TD.shape[0] * self._room)
        self._kernels.run_decoder_layers(
            self._fields.data_ptr(),
            len(self._layers),
            step.data_ptr(),
            keys_and_values.data_ptr(),
            hidden_TD.data_ptr(),
            added_TD.data_ptr(),
            residual_TD.data_ptr(),
            room.data_ptr(),
            hidden_TD.shape[0],
            self._eps,
        )
        return added_TD.add_(residual_TD)
