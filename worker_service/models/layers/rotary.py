"""Rotary position embedding: frequencies, their scalings, and the angles of a step.

Legend: T tokens, D head size.
"""

import math

import torch
from torch import Tensor, nn

from worker_service.kernels.rotary import Rotation
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

    def forward(self, positions_T: Tensor, *, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at positions; angles in float32, results in dtype."""
        angles = positions_T[:, None, None].float() * self.frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, blend linearly between."""
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
