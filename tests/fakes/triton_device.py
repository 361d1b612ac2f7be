"""Where Triton kernels run in tests: on the GPU, or where there is none, interpreted on the CPU."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

POISON = float("nan")
"""What stands in outputs and unused memory before a kernel runs: whatever it forgets shows."""


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that must be written before it is read."""
    if dtype.is_floating_point:
        return torch.full(shape, POISON, device=DEVICE).to(dtype)
    return torch.full(shape, 99, device=DEVICE, dtype=dtype)
