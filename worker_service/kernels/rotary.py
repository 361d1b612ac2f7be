"""Rotation of query and key heads by their tokens' positions.

    out[i]         = x[i] * cos - x[i + D/2] * sin
    out[i + D/2]   = x[i + D/2] * cos + x[i] * sin

Legend: T tokens, H heads of any kind, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosines and sines of a step's tokens [T, 1, D]; the first half of the sines is negative."""

    cos_T1D: Tensor
    sin_T1D: Tensor


def rotate(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) by its token's angle."""
    swapped_THD = x_THD.roll(x_THD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_THD * rotation.cos_T1D, swapped_THD, rotation.sin_T1D)
