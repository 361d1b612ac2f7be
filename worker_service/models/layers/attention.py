"""Projections around Attend.

Legend: T tokens, N query heads and K key heads of this rank, H = N + 2K, D model or head size.
"""

import torch
from torch import Tensor, nn

from worker_service.attention.backend import Attend
from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.kernels.rotary import Rotation
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.models.layers.norm import RMSNorm
from worker_service.models.model_spec import ModelSpec
from worker_service.parallel.groups import Ranks


class SelfAttention(nn.Module):
    """Grouped-query attention whose query, key and value projections are one matmul."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        ranks: Ranks,
        dtype: torch.dtype,
        device: torch.device,
        form: AttentionForm = PLAIN,
    ) -> None:
        super().__init__()
        num_heads = len(ranks.span(spec.num_heads))
        num_kv_heads = len(ranks.span(spec.num_kv_heads))
        self._head_size = spec.head_size
        self._num_heads, self._num_kv_heads = num_heads, num_kv_heads
        self._query_scale = spec.query_scale
        self._form = form
        self._has_norm = spec.has_qk_norm
        if spec.has_qk_norm:
            self.q_norm, self.k_norm = (
                RMSNorm(
                    spec.head_size,
                    eps=spec.rms_norm_eps,
                    dtype=dtype,
                    device=device,
                    has_unit_offset=spec.has_unit_offset,
                )
                for _ in "qk"
            )
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
            has_bias=spec.has_output_bias,
            ranks=ranks,
            dtype=dtype,
            device=device,
        )

    def forward(self, x_TD: Tensor, *, layer: int, rotation: Rotation, attend: Attend) -> Tensor:
        """Attend as the stage's layer `layer` (from 0), rotating by the tokens' positions."""
        num_tokens = x_TD.shape[0]
        qkv_THD = self.qkv(x_TD).view(num_tokens, -1, self._head_size)
        if self._has_norm:
            qkv_THD = self._normed(qkv_THD)
        if self._query_scale != 1:
            qkv_THD[:, : self._num_heads] *= self._query_scale
        attended_TND = attend(layer, qkv_THD, rotation, self._form)
        return self.output(attended_TND.view(num_tokens, -1))

    def _normed(self, qkv_THD: Tensor) -> Tensor:
        """Queries and keys normalised, each head by itself."""
        heads = (self._num_heads, self._num_kv_heads, self._num_kv_heads)
        q_TND, k_TKD, v_TKD = qkv_THD.split(heads, dim=1)
        return torch.cat((_each_head(self.q_norm, q_TND), _each_head(self.k_norm, k_TKD), v_TKD), 1)


def _each_head(norm: RMSNorm, x_THD: Tensor) -> Tensor:
    return norm(x_THD.reshape(-1, x_THD.shape[-1])).view(x_THD.shape)
