"""The types Triton kernels multiply in."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def dot_dtype(x: Tensor) -> tl.dtype:
    """What the operands of a product with x are; sums are float32 in every case.

    Triton's interpreter keeps bfloat16 as plain bits, which its product does not know.
    """
    if x.dtype is torch.bfloat16 and triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        return tl.float32
    return _DTYPES[x.dtype]
