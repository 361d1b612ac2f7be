"""RMS norm, alone or of a sum that is kept.

    norm(x) = weight * x / rms(x)

The quotient is taken in float32 whatever the dtype of x, and rounded before the product, as
checkpoints were trained.

Legend: T tokens, D model size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.native import native_kernels_for
from worker_service.kernels.triton_use import norm_rope, runs_triton


def rms_norm(x_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Normalise each row; [T, D]."""
    if runs_triton(x_TD):
        return norm_rope().rms_norm_triton(x_TD, weight_D, eps=eps)
    kernels = native_kernels_for(x_TD)
    if kernels is None:
        return rms_norm_reference(x_TD, weight_D, eps=eps)
    out_TD = torch.empty_like(x_TD)
    num_tokens, size = x_TD.shape
    kernels.rms_norm(
        x_TD.dtype is torch.bfloat16,
        x_TD.data_ptr(),
        0,
        weight_D.data_ptr(),
        out_TD.data_ptr(),
        num_tokens,
        size,
        eps,
    )
    return out_TD


def offset_rms_norm(x_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Normalise each row and multiply by one plus the weight, in float32 up to the end; [T, D]."""
    if runs_triton(x_TD):
        return norm_rope().rms_norm_triton(x_TD, weight_D, eps=eps, has_unit_offset=True)
    normed_TD = functional.rms_norm(x_TD.float(), weight_D.shape, None, eps)
    return (normed_TD * (1.0 + weight_D.float())).to(x_TD.dtype)


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Add the residual to x in place and normalise each row of the sum; [T, D]."""
    if runs_triton(x_TD):
        return norm_rope().rms_norm_triton(x_TD, weight_D, eps=eps, residual_TD=residual_TD)
    kernels = native_kernels_for(x_TD)
    if kernels is None or not residual_TD.is_contiguous():
        return rms_norm_reference(x_TD.add_(residual_TD), weight_D, eps=eps)
    out_TD = torch.empty_like(x_TD)
    num_tokens, size = x_TD.shape
    kernels.rms_norm(
        x_TD.dtype is torch.bfloat16,
        x_TD.data_ptr(),
        residual_TD.data_ptr(),
        weight_D.data_ptr(),
        out_TD.data_ptr(),
        num_tokens,
        size,
        eps,
    )
    return out_TD


def rms_norm_reference(x_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """The formula in torch, on any device."""
    shape = weight_D.shape
    if x_TD.dtype == torch.float32:
        return functional.rms_norm(x_TD, shape, weight_D, eps)
    normed_TD = functional.rms_norm(x_TD.float(), shape, None, eps)
    return weight_D * normed_TD.to(x_TD.dtype)
