"""RMS norm.

Legend: T tokens, D model size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """weight * x / rms(x), the division in float32 whatever the dtype of x."""

    def __init__(self, size: int, *, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(size, dtype=dtype, device=device), requires_grad=False
        )
        self._shape = (size,)
        self._eps = eps

    def forward(self, x_TD: Tensor) -> Tensor:
        """Normalise each row."""
        if x_TD.dtype == torch.float32:
            return functional.rms_norm(x_TD, self._shape, self.weight, self._eps)
        normed_TD = functional.rms_norm(x_TD.float(), self._shape, None, self._eps)
        # Checkpoints were trained with the product rounded after the quotient was.
        return self.weight * normed_TD.to(x_TD.dtype)
