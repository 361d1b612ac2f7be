"""RMS norm as a layer.

Legend: T tokens, D model size.
"""

import torch
from torch import Tensor, nn

from worker_service.kernels.norm import add_rms_norm, offset_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """weight * x / rms(x), the division in float32 whatever the dtype of x.

    has_unit_offset: one plus the weight counts.
    """

    def __init__(
        self,
        size: int,
        *,
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
        has_unit_offset: bool = False,
    ) -> None:
        super().__init__()
        self._has_unit_offset = has_unit_offset
        self.weight = nn.Parameter(
            torch.empty(size, dtype=dtype, device=device), requires_grad=False
        )
        self.eps = eps

    def forward(self, x_TD: Tensor) -> Tensor:
        """Normalise each row."""
        if self._has_unit_offset:
            return offset_rms_norm(x_TD, self.weight, eps=self.eps)
        return rms_norm(x_TD, self.weight, eps=self.eps)

    def add(self, x_TD: Tensor, residual_TD: Tensor) -> Tensor:
        """Add the residual to x in place and normalise each row of the sum."""
        if self._has_unit_offset:
            return offset_rms_norm(x_TD.add_(residual_TD), self.weight, eps=self.eps)
        return add_rms_norm(x_TD, residual_TD, self.weight, eps=self.eps)
