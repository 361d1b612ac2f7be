"""The gate of an MLP whose gate and up projections are one matmul.

    out = silu(gate) * up,  silu(x) = x / (1 + exp(-x))

Legend: T tokens, I inner size; a row holds gate, then up.
"""

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.native import native_kernels_for
from worker_service.kernels.triton_use import gate_triton, runs_triton


def silu_and_multiply(gate_up_T2I: Tensor) -> Tensor:
    """Gate each row; [T, I]."""
    if runs_triton(gate_up_T2I):
        return gate_triton().gate_triton(gate_up_T2I)
    kernels = native_kernels_for(gate_up_T2I)
    if kernels is None:
        return silu_and_multiply_reference(gate_up_T2I)
    num_tokens, size = gate_up_T2I.shape[0], gate_up_T2I.shape[1] // 2
    out_TI = torch.empty(num_tokens, size, dtype=gate_up_T2I.dtype)
    kernels.silu_and_multiply(
        gate_up_T2I.dtype is torch.bfloat16,
        gate_up_T2I.data_ptr(),
        out_TI.data_ptr(),
        num_tokens,
        size,
    )
    return out_TI


def gelu_and_multiply(gate_up_T2I: Tensor) -> Tensor:
    """Gate each row by GELU, the tanh form; [T, I]."""
    if runs_triton(gate_up_T2I):
        return gate_triton().gate_triton(gate_up_T2I, is_gelu=True)
    gate_TI, up_TI = gate_up_T2I.chunk(2, dim=-1)
    return functional.gelu(gate_TI, approximate="tanh").mul_(up_TI)


def silu_and_multiply_reference(gate_up_T2I: Tensor) -> Tensor:
    """The formula in torch, on any device."""
    gate_TI, up_TI = gate_up_T2I.chunk(2, dim=-1)
    return functional.silu(gate_TI).mul_(up_TI)
