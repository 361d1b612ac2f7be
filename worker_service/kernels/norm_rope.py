"""RMS norm, alone or of a sum that is kept, and the rotation of query and key heads, on a GPU.

    norm(x) = x / rms(x) * (weight + offset)

The quotient is taken in float32 and rounded to the dtype of x before the product; families that
multiply by one plus the weight take the whole product in float32 and round it once. The rotation is
that of `rotary`. `norm` and `rotary` hold the torch references.

Legend: T tokens, D model size or head size, H heads of any kind.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch


def rms_norm_triton(
    x_TD: Tensor,
    weight_D: Tensor,
    *,
    eps: float,
    residual_TD: Tensor | None = None,
    has_unit_offset: bool = False,
) -> Tensor:
    """Normalise each row, [T, D]; a residual is added to x in place first."""
    num_tokens, size = x_TD.shape
    out_TD = torch.empty((num_tokens, size), dtype=x_TD.dtype, device=x_TD.device)
    count_launch("rms_norm")
    if num_tokens:
        rms_norm_kernel[(num_tokens,)](
            x_TD,
            residual_TD if residual_TD is not None else x_TD,
            weight_D,
            out_TD,
            x_TD.stride(0),
            0 if residual_TD is None else residual_TD.stride(0),
            size,
            eps,
            HAS_RESIDUAL=residual_TD is not None,
            HAS_UNIT_OFFSET=has_unit_offset,
            SIZE_PADDED=triton.next_power_of_2(size),
            num_warps=4 if size <= 4096 else 8,
        )
    return out_TD


def rotate_triton(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> None:
    """Turn each pair (x[i], x[i + D/2]) by its token's angle, in place.

    x may be a view whose last dimension is dense; cos and sin are dense, and the first half of the
    sines is negative, as in `Rotation`.
    """
    num_tokens, num_heads, head_size = x_THD.shape
    count_launch("rotate")
    if num_tokens:
        rotate_kernel[(num_tokens, num_heads)](
            x_THD,
            cos_TD,
            sin_TD,
            x_THD.stride(0),
            x_THD.stride(1),
            HALF=head_size // 2,
            HALF_PADDED=triton.next_power_of_2(head_size // 2),
            num_warps=1,
        )


@triton.jit
def rms_norm_kernel(
    x_ptr,  # [T, D], D contiguous; takes the sum
    residual_ptr,  # [T, D], D contiguous
    weight_ptr,  # [D]
    out_ptr,  # [T, D]
    x_stride_t,
    residual_stride_t,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_UNIT_OFFSET: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
):
    """One row."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, SIZE_PADDED)
    is_d = d < size
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + token * x_stride_t + d, mask=is_d, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + token * residual_stride_t + d, mask=is_d, other=0.0)
        # The sum is rounded before it is normalised: the next layer adds to what stands there.
        rounded = (x + residual.to(tl.float32)).to(dtype)
        tl.store(x_ptr + token * x_stride_t + d, rounded, mask=is_d)
        x = rounded.to(tl.float32)
    normed = x / tl.sqrt(tl.sum(x * x, axis=0) / size + eps)
    weight = tl.load(weight_ptr + d, mask=is_d, other=0.0).to(tl.float32)
    if HAS_UNIT_OFFSET:  # noqa: SIM108 - decided when the kernel is compiled
        out = normed * (1.0 + weight)
    else:
        out = normed.to(dtype).to(tl.float32) * weight
    tl.store(out_ptr + token * size + d, out.to(dtype), mask=is_d)


@triton.jit
def rotate_kernel(
    x_ptr,  # [T, H, D], D contiguous
    cos_ptr,  # [T, D]
    sin_ptr,  # [T, D]
    x_stride_t,
    x_stride_h,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
):
    """One head of one token."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF_PADDED)
    is_d = d < HALF
    at = x_ptr + token * x_stride_t + tl.program_id(1) * x_stride_h + d
    first = tl.load(at, mask=is_d).to(tl.float32)
    second = tl.load(at + HALF, mask=is_d).to(tl.float32)
    angle_at = token * 2 * HALF + HALF + d
    cos = tl.load(cos_ptr + angle_at, mask=is_d).to(tl.float32)
    sin = tl.load(sin_ptr + angle_at, mask=is_d).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(at, (first * cos - second * sin).to(dtype), mask=is_d)
    tl.store(at + HALF, (second * cos + first * sin).to(dtype), mask=is_d)
