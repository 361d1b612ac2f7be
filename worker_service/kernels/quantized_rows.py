"""What the native products of quantized weights share: rows in, rows out, in types the kernels know.

Legend: T rows, I inputs, O outputs.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.decoder_layers import NativeLinear
from worker_service.kernels.native import Isa, NativeKernels

_INPUTS_AT_ONCE = 32


class NativeProduct(ABC):
    """Multiplies by weights that only a native kernel can read."""

    def __init__(self, shape: torch.Size, kernels: NativeKernels) -> None:
        self.num_outputs, self.num_inputs = shape
        self.kernels = kernels
        self._num_missing = -self.num_inputs % _INPUTS_AT_ONCE

    def multiply(
        self, x_TI: Tensor, bias_O: Tensor | None = None, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Multiply rows and add the bias; [T, O] in dtype, by default that of x."""
        assert x_TI.shape[1] == self.num_inputs, "as wide as the weight"
        dtype = dtype or x_TI.dtype
        is_narrow = x_TI.dtype == torch.bfloat16 and self.kernels.isa() == Isa.AVX512_BF16
        rows_TI = x_TI if is_narrow else x_TI.float()
        if self._num_missing:
            rows_TI = functional.pad(rows_TI, (0, self._num_missing))
        y_TO = torch.empty(
            x_TI.shape[0],
            self.num_outputs,
            dtype=torch.bfloat16 if dtype == torch.bfloat16 else torch.float32,
        )
        self._run(rows_TI.contiguous(), None if bias_O is None else bias_O.float(), y_TO)
        return y_TO.to(dtype)

    def native(self, bias_O: Tensor | None) -> NativeLinear | None:
        """The weight and a bias as native layers take them, where rows need no change for it."""
        if self._num_missing or self.kernels.isa() != Isa.AVX512_BF16:
            return None
        return self._describe(None if bias_O is None else bias_O.float())

    @abstractmethod
    def _describe(self, bias_O: Tensor | None) -> NativeLinear:
        """The weight and a float32 bias."""

    @abstractmethod
    def _run(self, x_TI: Tensor, bias_O: Tensor | None, y_TO: Tensor) -> None:
        """Fill y; x is float32 or, where the kernels read it, bfloat16, and the bias float32."""
