"""Keys and values of a step's tokens on their way into the paged cache, perhaps as 8-bit numbers.

    cache[slot(t)] = round_to_cache_dtype(x[t] / scale)

A token whose slot is -1 is not stored: padding never writes.

Legend: T tokens of the step, K key heads, S slots, D head size.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch


def store_keys_and_values(
    k_TKD: Tensor,
    v_TKD: Tensor,
    *,
    slots_T: Tensor,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write to the slots, int64 [T]; k and v may be views whose last dimension is dense."""
    num_tokens, num_kv_heads, head_size = k_TKD.shape
    count_launch("kv_store")
    store_kernel[(num_tokens, num_kv_heads)](
        k_TKD,
        v_TKD,
        slots_T,
        keys_KSD,
        values_KSD,
        1.0 / k_scale,
        1.0 / v_scale,
        k_TKD.stride(0),
        k_TKD.stride(1),
        v_TKD.stride(0),
        v_TKD.stride(1),
        keys_KSD.stride(0),
        HEAD_SIZE=head_size,
        HEAD_PADDED=triton.next_power_of_2(head_size),
        LARGEST=largest_of(keys_KSD.dtype),
        num_warps=1,
    )


def store_reference(
    k_TKD: Tensor,
    v_TKD: Tensor,
    *,
    slots_T: Tensor,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """The formula in torch."""
    stored_T = slots_T >= 0
    for x_TKD, cache_KSD, scale in ((k_TKD, keys_KSD, k_scale), (v_TKD, values_KSD, v_scale)):
        x_TKD = x_TKD[stored_T]
        if (largest := largest_of(cache_KSD.dtype)) > 0:
            x_TKD = (x_TKD.float() * (1.0 / scale)).clamp(-largest, largest)
            if cache_KSD.dtype is torch.int8:
                x_TKD = x_TKD.round()
        cache_KSD[:, slots_T[stored_T]] = x_TKD.transpose(0, 1).to(cache_KSD.dtype)


def largest_of(dtype: torch.dtype) -> float:
    """The largest number of an 8-bit type, 0 for the others, which are stored as they are."""
    if dtype is torch.int8:
        return 127.0
    return torch.finfo(dtype).max if dtype.itemsize == 1 else 0.0


@triton.jit
def store_kernel(
    k_ptr,  # [T, K, D], D contiguous
    v_ptr,  # [T, K, D], D contiguous
    slots_ptr,  # int64 [T]
    keys_ptr,  # [K, S, D], slots and D contiguous
    values_ptr,  # [K, S, D], as the keys
    inverse_k_scale,
    inverse_v_scale,
    k_stride_t,
    k_stride_k,
    v_stride_t,
    v_stride_k,
    cache_stride_k,
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """One token and key head."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    d = tl.arange(0, HEAD_PADDED)
    is_d = d < HEAD_SIZE
    k = tl.load(k_ptr + token * k_stride_t + kv_head * k_stride_k + d, mask=is_d)
    v = tl.load(v_ptr + token * v_stride_t + kv_head * v_stride_k + d, mask=is_d)
    if LARGEST > 0:
        k = _rounded(k.to(tl.float32) * inverse_k_scale, LARGEST, keys_ptr.dtype.element_ty)
        v = _rounded(v.to(tl.float32) * inverse_v_scale, LARGEST, values_ptr.dtype.element_ty)
    at = kv_head * cache_stride_k + slot * HEAD_SIZE + d
    tl.store(keys_ptr + at, k.to(keys_ptr.dtype.element_ty), mask=is_d)
    tl.store(values_ptr + at, v.to(values_ptr.dtype.element_ty), mask=is_d)


@triton.jit
def _rounded(x, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Clamp, and for integers round half to even, which a cast does not."""
    x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    if tl.int8 == DTYPE:
        # Adding and taking 1.5 * 2^23 leaves what float32 rounds to: an integer, ties to even.
        x = (x + 12582912.0) - 12582912.0
    return x.to(DTYPE)
