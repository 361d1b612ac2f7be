"""Rotary position embedding: frequencies, their scalings, and the angles of a step.

Legend: T tokens, D head size.
"""

import math

import torch
from torch import Tensor, nn

from worker_service.kernels.rotary import Rotation
from worker_service.models.model_spec import Llama3Scaling, RopeSpec

_SMALLEST_TABLE = 1024


class RotaryEmbedding(nn.Module):
    """Knows the cosines and sines of a step's positions; asked once for all layers."""

    def __init__(self, head_size: int, *, rope: RopeSpec, device: torch.device) -> None:
        super().__init__()
        # On the CPU whatever the device is, so that all devices rotate by the same frequencies.
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size
        frequencies = 1.0 / (rope.theta**exponents)
        if rope.scaling is not None:
            frequencies = _llama3_frequencies(frequencies, rope.scaling)
        self.frequencies: Tensor
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)

        self._table: Rotation | None = None

    def forward(self, positions_T: Tensor, *, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at positions; angles in float32, results in dtype."""
        if not positions_T.is_cpu:
            # To learn how far the positions reach would mean to wait for the device.
            return self._rotation(positions_T, dtype)
        table = self._reach(int(positions_T.max()) + 1, dtype)
        return Rotation(
            table.cos_T1D.index_select(0, positions_T), table.sin_T1D.index_select(0, positions_T)
        )

    def _reach(self, num_positions: int, dtype: torch.dtype) -> Rotation:
        """A table of at least so many positions, kept for later steps."""
        table = self._table
        if table is None or len(table.cos_T1D) < num_positions or table.cos_T1D.dtype != dtype:
            size = max(_SMALLEST_TABLE, 1 << (num_positions - 1).bit_length())
            table = self._table = self._rotation(torch.arange(size), dtype)
        return table

    def _rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
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
