"""Log-probabilities of chosen and most likely tokens, from the logits before any filter."""

import torch
from torch import Tensor

from common.step import Logprobs
from worker_service.kernels.sampling_ops import keep_largest

# S rows that sample, V vocabulary, K alternatives


def compute_logprobs(logits_SV: Tensor, chosen_S: Tensor, *, num_alternatives: int) -> Logprobs:
    """Chosen token first, then the num_alternatives most likely ones, ties by the lowest id.

    logits float32 [S, V], finite; chosen int64 [S]. The rank of the chosen token counts the logits
    that are at least its own, so it is 1-based and tied tokens share the largest rank.
    """
    chosen_logit_S1 = logits_SV.gather(1, chosen_S.unsqueeze(1))
    ranks_S = (logits_SV >= chosen_logit_S1).sum(dim=1)
    token_ids_SK = torch.cat(
        [chosen_S.unsqueeze(1), _most_likely(logits_SV, num_alternatives)], dim=1
    )
    normalizer_S1 = logits_SV.logsumexp(dim=1, keepdim=True)
    logprobs_SK = logits_SV.gather(1, token_ids_SK) - normalizer_S1
    return Logprobs(
        token_ids=token_ids_SK.to(torch.int32).cpu().numpy(),
        logprobs=logprobs_SK.cpu().numpy(),
        ranks=ranks_S.to(torch.int32).cpu().numpy(),
    )


def _most_likely(logits_SV: Tensor, count: int) -> Tensor:
    """Ids int64 [S, K] of the largest logits in falling order, ties by the lowest id."""
    num_rows = len(logits_SV)
    if count == 0:
        return torch.empty((num_rows, 0), dtype=torch.int64, device=logits_SV.device)
    floor_S = logits_SV.topk(count, dim=1).values[:, -1]
    counts_S = torch.full_like(floor_S, count, dtype=torch.int64)
    # topk leaves the order of ties open, so the ids come from an exact mask, lowest first, and a
    # stable sort keeps that order.
    kept_SV = keep_largest(logits_SV, counts_S, floor_R=floor_S)
    token_ids_SK = kept_SV.nonzero()[:, 1].view(num_rows, count)
    order_SK = logits_SV.gather(1, token_ids_SK).argsort(dim=1, descending=True, stable=True)
    return token_ids_SK.gather(1, order_SK)
