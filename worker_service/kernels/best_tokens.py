"""The best token of each row of logits, and whether the logits are numbers at all.

    best[s] = the lowest v with logits[s, v] = max over v of logits[s, v]

Legend: S rows that sample, V vocabulary.
"""

import torch
from torch import Tensor

from worker_service.kernels.native import native_kernels_for


def best_tokens(logits_SV: Tensor) -> tuple[Tensor, bool]:
    """Best tokens, integers [S], and whether every logit is known to be finite.

    False may be a false alarm, so that one pass over the logits is enough.
    """
    kernels = native_kernels_for(logits_SV)
    if kernels is None or not len(logits_SV):
        return best_tokens_reference(logits_SV)
    num_rows, vocabulary = logits_SV.shape
    tokens_S = torch.empty(num_rows, dtype=torch.int32)
    is_finite = kernels.greedy(
        logits_SV.dtype is torch.bfloat16,
        logits_SV.data_ptr(),
        num_rows,
        vocabulary,
        tokens_S.data_ptr(),
    )
    return tokens_S, is_finite


def best_tokens_reference(logits_SV: Tensor) -> tuple[Tensor, bool]:
    """The formula in torch: a row's sum is finite unless an element is not, or the sum overflows."""
    return logits_SV.argmax(dim=1), bool(logits_SV.sum(dim=1).isfinite().all())
