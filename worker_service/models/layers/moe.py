"""Mixture of experts: each token by its best few of many gated MLPs.

    p = softmax(router(x));  y = sum over the K best e of w[e] * expert_e(x)

w is p itself, or p over the sum of the K best ones (Jiang et al., "Mixtral of Experts",
arXiv:2401.04088). Which expert a token takes is decided in float32; equal ones by the lowest index.

Legend: T tokens, D model size, E experts, K experts of a token, I inner size, P = T * K pairs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_service.kernels.gated_activation import silu_and_multiply
from worker_service.kernels.triton_use import grouped_matmul, runs_triton
from worker_service.models.model_spec import ExpertsSpec


class ExpertsMLP(nn.Module):
    """All experts of a layer, their weights one below the other: expert e's gate, then its up."""

    def __init__(
        self, spec: ExpertsSpec, *, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self._spec = spec
        self._hidden_size = hidden_size

        def parameter(num_rows: int, num_columns: int) -> nn.Parameter:
            values = torch.empty((num_rows, num_columns), dtype=dtype, device=device)
            return nn.Parameter(values, requires_grad=False)

        num_experts, inner = spec.num_experts, spec.intermediate_size
        self.router = parameter(num_experts, hidden_size)
        self.gate_up = parameter(num_experts * 2 * inner, hidden_size)
        self.down = parameter(num_experts * hidden_size, inner)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Transform each row; [T, D]."""
        weights_TK, experts_TK = self._route(x_TD)
        groups_P = experts_TK.flatten()
        gate_up_EOI = self.gate_up.view(self._spec.num_experts, -1, self._hidden_size)
        down_EDI = self.down.view(self._spec.num_experts, self._hidden_size, -1)
        per_row = self._spec.num_per_token
        inner_PI = silu_and_multiply(_multiply(x_TD, gate_up_EOI, groups_P, pairs_per_row=per_row))
        out_PD = _multiply(inner_PI, down_EDI, groups_P, pairs_per_row=1)
        out_TKD = out_PD.view(len(x_TD), per_row, -1) * weights_TK[:, :, None].to(x_TD.dtype)
        return out_TKD.sum(dim=1)

    def _route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 [T, K] and experts int64 [T, K]."""
        logits_TE = functional.linear(x_TD, self.router).float()
        weights_TE = logits_TE.softmax(dim=-1)
        # A stable sort: topk leaves the order of equal ones open.
        order_TE = weights_TE.argsort(dim=-1, descending=True, stable=True)
        experts_TK = order_TE[:, : self._spec.num_per_token]
        weights_TK = weights_TE.gather(1, experts_TK)
        if self._spec.is_normalised:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        return weights_TK, experts_TK


def _multiply(x_MI: Tensor, w_EOI: Tensor, groups_P: Tensor, *, pairs_per_row: int) -> Tensor:
    """Row p // pairs_per_row of x by the weight of group p; [P, O]."""
    if runs_triton(x_MI):
        kernels = grouped_matmul()
        pairs = kernels.sort_by_group(groups_P, num_groups=len(w_EOI))
        return kernels.grouped_matmul(x_MI, w_EOI, pairs, pairs_per_row=pairs_per_row)
    out_PO = torch.empty((len(groups_P), w_EOI.shape[1]), dtype=x_MI.dtype, device=x_MI.device)
    for group in groups_P.unique().tolist():
        (chosen,) = (groups_P == group).nonzero(as_tuple=True)
        out_PO[chosen] = functional.linear(x_MI[chosen // pairs_per_row], w_EOI[group])
    return out_PO
