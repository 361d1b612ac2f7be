"""Rotary position embedding: frequencies, their scalings, and the rotation.

Legend: T tokens, H heads of any kind, D head size.
"""

import math

import torch
from torch import Tensor, nn

from worker_service.models.model_spec import Llama3Scaling, RopeSpec


class RotaryEmbedding(nn.Module):
    """Computes the cosines and sines of a step's positions, once for all layers."""

    def __init__(self, head_size: int, *, rope: RopeSpec, device: torch.device) -> None:
        super().__init__()
        # On the CPU whatever the device is, so that all devices rotate by the same frequencies.
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size
        frequencies = 1.0 / (rope.theta**exponents)
        if rope.scaling is not None:
            frequencies = _llama3_frequencies(frequencies, rope.scaling)
        self.frequencies: Tensor
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)

    def forward(self, positions_T: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [T, 1, D] for `rotate`; angles in float32, results in dtype."""
        angles = positions_T[:, None, None].float() * self.frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) by its position's angle; sin_T1D is negative in its first half."""
    swapped_THD = x_THD.roll(x_THD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_THD * cos_T1D, swapped_THD, sin_T1D)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, blend linearly between."""
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
