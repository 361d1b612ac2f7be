"""Projections around Attend.

Legend: T tokens, N query heads and K key heads of this rank, H = N + 2K, D model or head size.
"""

import torch
from torch import Tensor, nn

from worker_service.attention.backend import Attend
from worker_service.kernels.rotary import Rotation
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.models.model_spec import ModelSpec
from worker_service.parallel.groups import Ranks


class SelfAttention(nn.Module):
    """Grouped-query attention whose query, key and value projections are one matmul."""

    def __init__(
        self, spec: ModelSpec, *, ranks: Ranks, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        num_heads = len(ranks.span(spec.num_heads))
        num_kv_heads = len(ranks.span(spec.num_kv_heads))
        self._head_size = spec.head_size
        self.qkv = ColumnLinear(
            spec.hidden_size,
            (num_heads + 2 * num_kv_heads) * spec.head_size,
            has_bias=spec.has_attention_bias,
            dtype=dtype,
            device=device,
        )
        self.output = RowLinear(
            num_heads * spec.head_size,
            spec.hidden_size,
            has_bias=spec.has_attention_bias,
            ranks=ranks,
            dtype=dtype,
            device=device,
        )

    def forward(self, x_TD: Tensor, *, layer: int, rotation: Rotation, attend: Attend) -> Tensor:
        """Attend as the stage's layer `layer` (from 0), rotating by the tokens' positions."""
        num_tokens = x_TD.shape[0]
        qkv_THD = self.qkv(x_TD).view(num_tokens, -1, self._head_size)
        return self.output(attend(layer, qkv_THD, rotation).view(num_tokens, -1))
