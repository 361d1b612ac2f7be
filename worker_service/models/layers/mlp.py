"""Gated MLP.

Legend: T tokens, D model size, I inner size of this rank.
"""

import torch
from torch import Tensor, nn

from worker_service.kernels.gated_activation import gelu_and_multiply, silu_and_multiply
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.models.model_spec import ModelSpec
from worker_service.parallel.groups import Ranks


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up in one matmul."""

    def __init__(
        self, spec: ModelSpec, *, ranks: Ranks, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._gate = gelu_and_multiply if spec.activation == "gelu" else silu_and_multiply
        inner = len(ranks.span(spec.intermediate_size))
        self.gate_up = ColumnLinear(
            spec.hidden_size,
            2 * inner,
            has_bias=spec.has_mlp_bias,
            dtype=dtype,
            device=device,
        )
        self.down = RowLinear(
            inner,
            spec.hidden_size,
            has_bias=spec.has_mlp_bias,
            ranks=ranks,
            dtype=dtype,
            device=device,
        )

    def forward(self, x_TD: Tensor) -> Tensor:
        """Transform each row; [T, D]."""
        return self.down(self._gate(self.gate_up(x_TD)))
