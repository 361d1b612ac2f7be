"""Linear layers split over tensor-parallel ranks by output (column) or by input (row).

Legend: T tokens, I inputs, O outputs, of this rank.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_service.parallel.collectives import all_reduce
from worker_service.parallel.groups import Ranks


class ColumnLinear(nn.Module):
    """Holds some of the outputs (columns or whole heads); the result stays split over the ranks."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """num_outputs counts this rank's."""
        super().__init__()
        self.weight = _parameter((num_outputs, num_inputs), dtype=dtype, device=device)
        self.bias = _parameter((num_outputs,), dtype=dtype, device=device) if has_bias else None

    def forward(self, x_TI: Tensor) -> Tensor:
        """Multiply; [T, O]."""
        return functional.linear(x_TI, self.weight, self.bias)


class RowLinear(nn.Module):
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
        """num_inputs counts this rank's."""
        super().__init__()
        self.weight = _parameter((num_outputs, num_inputs), dtype=dtype, device=device)
        self.bias = _parameter((num_outputs,), dtype=dtype, device=device) if has_bias else None
        self._ranks = ranks

    def forward(self, x_TI: Tensor) -> Tensor:
        """Multiply and sum over the ranks; [T, O]."""
        # The sum over ranks must hold the bias once.
        bias = self.bias if self._ranks.index == 0 else None
        return all_reduce(functional.linear(x_TI, self.weight, bias), self._ranks)


def _parameter(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
