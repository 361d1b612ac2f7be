"""Linear layers split over tensor-parallel ranks by output (column) or by input (row).

Legend: T tokens, I inputs, O outputs, of this rank.
"""

import torch
from torch import Tensor, nn

from worker_service.kernels.decoder_layers import NativeLinear
from worker_service.kernels.packed_weight import PackedWeight, PlainWeight, WeightPacker
from worker_service.parallel.collectives import all_reduce
from worker_service.parallel.groups import Ranks


class _Linear(nn.Module):
    """A weight, plain while it is filled and packed from then on, and perhaps a bias."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.weight = _parameter((num_outputs, num_inputs), dtype=dtype, device=device)
        self.bias = _parameter((num_outputs,), dtype=dtype, device=device) if has_bias else None
        self.packed: PackedWeight = PlainWeight(self.weight)

    def native(self) -> NativeLinear | None:
        """The layer as native layers take it, bfloat16 in and out; None if they cannot."""
        return self.packed.native(self.bias)

    def pack(self, packer: WeightPacker) -> None:
        """Hold the loaded weight in another form instead."""
        self.packed = packer(self.weight)
        del self.weight


class ColumnLinear(_Linear):
    """Holds some of the outputs (columns or whole heads); the result stays split over the ranks."""

    def forward(self, x_TI: Tensor) -> Tensor:
        """Multiply; [T, O]."""
        return self.packed.multiply(x_TI, self.bias)


class RowLinear(_Linear):
    """Holds some of the inputs; the ranks' partial results are summed, so each gets all outputs."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        has_bias: bool,
        ranks: Ranks,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(num_inputs, num_outputs, has_bias=has_bias, dtype=dtype, device=device)
        self._ranks = ranks

    def forward(self, x_TI: Tensor) -> Tensor:
        """Multiply and sum over the ranks; [T, O]."""
        # The sum over ranks must hold the bias once.
        bias = self.bias if self._ranks.index == 0 else None
        return all_reduce(self.packed.multiply(x_TI, bias), self._ranks)


def _parameter(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
