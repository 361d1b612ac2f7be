"""Attention to one tile of a context, and the merging of tiles: online softmax over whole tiles.

With lse = log sum exp of a tile's scores, two tiles merge into
lse = log(exp(lse_a) + exp(lse_b)) and out = out_a * exp(lse_a - lse) + out_b * exp(lse_b - lse).

Legend: B batch of heads (and rows), M queries, S slots of the tile, D head size; all float32.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """The attention to a part of a context: out [..., M, D], and lse [..., M, 1]."""

    out: Tensor
    lse: Tensor

    def merge(self, other: Self) -> "Partial":
        """The attention to both parts."""
        lse = torch.logaddexp(self.lse, other.lse)
        out = self.out * (self.lse - lse).exp_() + other.out * (other.lse - lse).exp_()
        return Partial(out, lse)


def scaled_scores(q_BMD: Tensor, k_BSD: Tensor, bias: Tensor | None) -> Tensor:
    """Products of scaled queries with keys, plus a bias that broadcasts to them; [B, M, S]."""
    if bias is None:
        return torch.bmm(q_BMD, k_BSD.mT)
    return torch.baddbmm(bias, q_BMD, k_BSD.mT)


def attend_part(scores_BMS: Tensor, v_BSD: Tensor) -> Partial:
    """The attention to one tile, in a form that merges with others."""
    lse_BM1 = scores_BMS.logsumexp(dim=-1, keepdim=True)
    return Partial(torch.bmm(scores_BMS.softmax(dim=-1), v_BSD), lse_BM1)
