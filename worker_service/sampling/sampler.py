"""The sampler: logits -> tokens, all rows of a batch in one vectorised path.

Order: raw log-probabilities, temperature, min_p, top_k, top_p, Gumbel draw. Temperature 0 is
greedy: such rows see neither filter nor noise. What a row draws depends on nothing but its own
logits and parameters. Ties go to the lowest token id.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.step import Int32s, Int64s, Logprobs
from worker_service.kernels.best_tokens import best_tokens
from worker_service.kernels.sampling_ops import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    gumbel_noise,
)
from worker_service.sampling.logit_check import finite_rows
from worker_service.sampling.logprobs import compute_logprobs
from worker_service.sampling.sampling_states import NO_LOGPROBS, SamplingRows

# S rows that sample, R rows among them that draw at random, V vocabulary

_CPU_ELEMENTS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerOutput:
    """What was drawn, on the host.

    is_finite bool [S]: rows with a logit that is no finite number have no token; token_ids int32,
    one for each of the others, and their log-probabilities when any row asked for them.
    """

    is_finite: NDArray[np.bool_]
    token_ids: Int32s
    logprobs: Logprobs | None


def sample(logits_SV: Tensor, rows: SamplingRows) -> SamplerOutput:
    """Draw one token per row from float32 logits [S, V]."""
    best_S, is_all_finite = best_tokens(logits_SV)
    is_finite_S = np.ones(len(logits_SV), dtype=np.bool_)
    if not is_all_finite:
        is_finite_S = finite_rows(logits_SV)
        kept_S = torch.from_numpy(is_finite_S).to(logits_SV.device)
        logits_SV, best_S, rows = logits_SV[kept_S], best_S[kept_S], rows.take(is_finite_S)
    tokens_S = _choose(logits_SV, rows, best_S)
    num_alternatives = int(rows.num_logprobs.max(initial=NO_LOGPROBS))
    logprobs = (
        None
        if num_alternatives == NO_LOGPROBS
        else compute_logprobs(
            logits_SV, tokens_S.to(torch.int64), num_alternatives=num_alternatives
        )
    )
    token_ids = tokens_S.to(torch.int32).cpu().numpy()
    return SamplerOutput(is_finite=is_finite_S, token_ids=token_ids, logprobs=logprobs)


def _choose(logits_SV: Tensor, rows: SamplingRows, best_S: Tensor) -> Tensor:
    """Tokens [S]: the best one in greedy rows, a drawn one in the others."""
    drawn = np.flatnonzero(rows.temperature > 0)
    tokens_S = best_S
    for drawn_rows in _chunks(drawn, logits_SV):
        index_R = torch.from_numpy(drawn_rows).to(logits_SV.device)
        drawn_R = _draw(logits_SV[index_R], rows.take(drawn_rows))
        tokens_S[index_R] = drawn_R.to(tokens_S.dtype)
    return tokens_S


def _chunks(rows: Int64s, logits_SV: Tensor) -> list[Int64s]:
    """All rows at once on a GPU; on a CPU few enough that what is made of them stays in its cache.

    There, drawing eight rows of 49,152 tokens at once takes four times as long as one by one.
    """
    at_once = max(1, _CPU_ELEMENTS_AT_ONCE // logits_SV.shape[1])
    if logits_SV.device.type != "cpu":
        at_once = max(1, len(rows))
    return [rows[first : first + at_once] for first in range(0, len(rows), at_once)]


def _draw(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens int64 [R] of rows with a temperature above 0."""
    device, vocab_size = logits_RV.device, logits_RV.shape[1]

    def to_device(column: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(column).to(device)

    # The largest logit becomes 0 first, so that no temperature, however small, overflows.
    scaled_RV = logits_RV - logits_RV.amax(dim=1, keepdim=True)
    scaled_RV.div_(to_device(rows.temperature).unsqueeze(1))
    if rows.min_p.any():
        scaled_RV = apply_min_p(scaled_RV, to_device(rows.min_p))
    if rows.top_k.any():
        largest_k = int(rows.top_k.max())
        scaled_RV = apply_top_k(scaled_RV, to_device(rows.top_k), largest_k=largest_k)
    if (rows.top_p < 1).any():
        scaled_RV = apply_top_p(scaled_RV, to_device(rows.top_p))
    scaled_RV.add_(
        gumbel_noise(to_device(rows.seeds), to_device(rows.positions), vocab_size=vocab_size)
    )
    return scaled_RV.argmax(dim=1)
