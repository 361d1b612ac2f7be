"""Low-rank updates of a linear layer, each token by its own adapter or by none.

    y[t] += scale[a(t)] * B[a(t)] @ (A[a(t)] @ x[t])

Hu et al., "LoRA", arXiv:2106.09685. Tokens are sorted by adapter once for all layers of a step, so that
a tile of tokens has one A and one B (Chen et al., "Punica", arXiv:2310.18547).

Legend: T tokens, I inputs, O outputs, Z rank, E adapters.
"""

import torch
from torch import Tensor

from worker_service.kernels.grouped_matmul import NO_GROUP, SortedPairs, grouped_matmul


def add_lora(
    y_TO: Tensor, x_TI: Tensor, *, a_EZI: Tensor, b_EOZ: Tensor, scale_T: Tensor, pairs: SortedPairs
) -> None:
    """Add to y in place; `pairs` are the tokens sorted by adapter, scale is that of a token's adapter."""
    # Between the two products stands float32, as the rank is small and the sum over inputs large.
    down_TZ = torch.zeros((len(x_TI), a_EZI.shape[1]), dtype=torch.float32, device=x_TI.device)
    grouped_matmul(x_TI, a_EZI, pairs, pairs_per_row=1, scale_P=scale_T, out_PO=down_TZ)
    grouped_matmul(down_TZ, b_EOZ, pairs, pairs_per_row=1, out_PO=y_TO, adds=True)


def add_lora_reference(
    y_TO: Tensor,
    x_TI: Tensor,
    *,
    a_EZI: Tensor,
    b_EOZ: Tensor,
    scale_T: Tensor,
    adapters_T: Tensor,
) -> None:
    """The formula in torch, token by token."""
    for token, adapter in enumerate(adapters_T.tolist()):
        if adapter != NO_GROUP:
            down_Z = scale_T[token].float() * (a_EZI[adapter].float() @ x_TI[token].float())
            up_O = b_EOZ[adapter].float() @ down_Z
            y_TO[token] = (y_TO[token].float() + up_O).to(y_TO.dtype)
