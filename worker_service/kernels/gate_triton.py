"""The gates of `gated_activation` on a GPU: SiLU, and GELU by its tanh approximation.

    out = act(gate) * up
    silu(x) = x / (1 + exp(-x))
    gelu(x) = x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)),  Hendrycks and Gimpel, arXiv:1606.08415

The torch references stand in `gated_activation`.

Legend: T tokens, I inner size; a row holds gate, then up.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch

_AT_ONCE = 1024


def gate_triton(gate_up_T2I: Tensor, *, is_gelu: bool = False) -> Tensor:
    """Gate each row; [T, I]. Rows may lie apart, a row is dense."""
    num_tokens, size = gate_up_T2I.shape[0], gate_up_T2I.shape[1] // 2
    out_TI = torch.empty((num_tokens, size), dtype=gate_up_T2I.dtype, device=gate_up_T2I.device)
    count_launch("gated_activation")
    if num_tokens:
        gate_kernel[(num_tokens, triton.cdiv(size, _AT_ONCE))](
            gate_up_T2I,
            out_TI,
            gate_up_T2I.stride(0),
            size,
            IS_GELU=is_gelu,
            AT_ONCE=_AT_ONCE,
            num_warps=4,
        )
    return out_TI


@triton.jit
def gate_kernel(
    gate_up_ptr,  # [T, 2 I], a row dense
    out_ptr,  # [T, I]
    stride_t,
    size,
    IS_GELU: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Some elements of one row."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    is_i = i < size
    gate = tl.load(gate_up_ptr + token * stride_t + i, mask=is_i, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * stride_t + size + i, mask=is_i, other=0.0)
    if IS_GELU:
        act = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        act = gate * tl.sigmoid(gate)
    dtype = out_ptr.dtype.element_ty
    out = act.to(dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + token * size + i, out.to(dtype), mask=is_i)
