"""The sampler: logits -> tokens, all rows of a batch in one vectorised path.

Order: grammar mask, raw log-probabilities, edits of the logits, temperature, min_p, top_k, top_p, Gumbel draw.
Temperature 0 is greedy: such rows see neither filter nor noise. What a row draws depends on nothing but its own
logits and parameters. Ties go to the lowest token id.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.step import Float32s, Int32s, Int64s, Logprobs
from worker_service.kernels.best_tokens import best_tokens
from worker_service.kernels.draw import draw_tokens, scale
from worker_service.kernels.logit_edits import apply_mask
from worker_service.kernels.sampling_ops import apply_min_p, apply_top_k, apply_top_p
from worker_service.sampling.grammar_mask import MaskedRows
from worker_service.sampling.logit_check import finite_rows
from worker_service.sampling.logit_editor import NOTHING_ALLOWED, LogitEditor
from worker_service.sampling.logprobs import compute_logprobs
from worker_service.sampling.sampling_states import NO_LOGPROBS, SamplingRows

# S rows that sample, R rows among them that draw at random, V vocabulary

_CPU_ELEMENTS_AT_ONCE = 1 << 16

NOT_FINITE = "the model's logits are not finite numbers"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplerOutput:
    """What was drawn, on the host.

    is_sampled bool [S]: the others have no token, and errors say why, by row; token_ids int32, one
    for each sampled row, and their log-probabilities when any row asked for them.
    """

    is_sampled: NDArray[np.bool_]
    token_ids: Int32s
    logprobs: Logprobs | None
    errors: Mapping[int, str] = field(default_factory=dict)


def sample(
    logits_SV: Tensor,
    rows: SamplingRows,
    editor: LogitEditor | None = None,
    masked: MaskedRows | None = None,
) -> SamplerOutput:
    """Draw one token per row from float32 logits [S, V], which a mask and an editor may write to."""
    num_rows = len(logits_SV)
    best_S, is_all_finite = best_tokens(logits_SV)
    sampled, errors = np.arange(num_rows), dict[int, str]()
    if not is_all_finite:
        is_finite_S = finite_rows(logits_SV)
        errors = {row: NOT_FINITE for row in np.flatnonzero(~is_finite_S).tolist()}
    if masked is not None:
        apply_mask(logits_SV, masked.rows, masked.bits)
        changed = torch.from_numpy(masked.rows).to(logits_SV.device)
        best_S[changed] = logits_SV[changed].argmax(dim=1).to(best_S.dtype)
        empty = (logits_SV[changed].amax(dim=1) == -math.inf).cpu().numpy()
        for row in masked.rows[empty].tolist():
            errors.setdefault(row, NOTHING_ALLOWED)
    if errors:
        is_right = np.ones(num_rows, dtype=np.bool_)
        is_right[list(errors)] = False
        sampled = np.flatnonzero(is_right)
        logits_SV, best_S, rows = _kept(is_right, logits_SV, best_S, rows)
    raw_SV = logits_SV
    if editor is not None and (edited := editor.edited_rows(rows)):
        if rows.most_logprobs != NO_LOGPROBS:
            logits_SV = logits_SV.clone()
        failures = editor.apply(logits_SV, edited)
        changed = [each.row for each in edited]
        best_S[changed] = logits_SV[changed].argmax(dim=1).to(best_S.dtype)
        if failures:
            errors |= {int(sampled[row]): reason for row, reason in failures.items()}
            is_right = np.ones(len(sampled), dtype=np.bool_)
            is_right[list(failures)] = False
            raw_SV = raw_SV[torch.from_numpy(is_right).to(raw_SV.device)]
            logits_SV, best_S, rows = _kept(is_right, logits_SV, best_S, rows)
            sampled = sampled[is_right]
    tokens_S = _choose(logits_SV, rows, best_S)
    is_sampled = np.zeros(num_rows, dtype=np.bool_)
    is_sampled[sampled] = True
    return SamplerOutput(
        is_sampled=is_sampled,
        token_ids=tokens_S.to(torch.int32).cpu().numpy(),
        logprobs=_logprobs(raw_SV, tokens_S, rows),
        errors=errors,
    )


def _kept(
    is_kept_S: NDArray[np.bool_], logits_SV: Tensor, best_S: Tensor, rows: SamplingRows
) -> tuple[Tensor, Tensor, SamplingRows]:
    """Only some of the rows."""
    kept_S = torch.from_numpy(is_kept_S).to(logits_SV.device)
    return logits_SV[kept_S], best_S[kept_S], rows.take(is_kept_S)


def _logprobs(raw_SV: Tensor, tokens_S: Tensor, rows: SamplingRows) -> Logprobs | None:
    num_alternatives = rows.most_logprobs
    if num_alternatives == NO_LOGPROBS:
        return None
    return compute_logprobs(raw_SV, tokens_S.to(torch.int64), num_alternatives=num_alternatives)


def _choose(logits_SV: Tensor, rows: SamplingRows, best_S: Tensor) -> Tensor:
    """Tokens [S]: the best one in greedy rows, a drawn one in the others."""
    if rows.is_greedy:
        return best_S
    is_drawn_S = rows.temperature > 0
    is_limited_S = is_drawn_S & ((rows.top_k > 0) | (rows.top_p < 1))
    tokens_S = best_S.clone()
    for draw, is_chosen_S in (
        (_draw_any, is_drawn_S & ~is_limited_S),
        (_draw_limited, is_limited_S),
    ):
        for chosen in _chunks(np.flatnonzero(is_chosen_S), logits_SV):
            index_R = torch.from_numpy(chosen).to(logits_SV.device)
            drawn_R = draw(_take(logits_SV, chosen), rows.take(chosen))
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


def _take(logits_SV: Tensor, rows: Int64s) -> Tensor:
    """The given rows, without a copy where they follow each other."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    if end - first == len(rows):
        return logits_SV[first:end]
    return logits_SV[torch.from_numpy(rows).to(logits_SV.device)]


def _draw_any(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [R] of rows with a temperature that may draw whatever min_p leaves them."""
    return _draw(logits_RV, rows, temperature=rows.temperature, min_p=rows.min_p)


def _draw_limited(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [R] of rows with a temperature and a top_k or top_p, which come after min_p."""
    device = logits_RV.device

    def to_device(column: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(column).to(device)

    scaled_RV = scale(logits_RV, to_device(rows.temperature))
    if rows.min_p.any():
        scaled_RV = apply_min_p(scaled_RV, to_device(rows.min_p))
    if rows.top_k.any():
        largest_k = int(rows.top_k.max())
        scaled_RV = apply_top_k(scaled_RV, to_device(rows.top_k), largest_k=largest_k)
    if (rows.top_p < 1).any():
        scaled_RV = apply_top_p(scaled_RV, to_device(rows.top_p))
    return _draw(
        scaled_RV,
        rows,
        temperature=np.ones_like(rows.temperature),
        min_p=np.zeros_like(rows.min_p),
    )


def _draw(
    logits_RV: Tensor, rows: SamplingRows, *, temperature: Float32s, min_p: Float32s
) -> Tensor:
    device = logits_RV.device
    return draw_tokens(
        logits_RV,
        temperature_R=torch.from_numpy(temperature).to(device),
        min_p_R=torch.from_numpy(min_p).to(device),
        seeds_R=torch.from_numpy(rows.seeds).to(device),
        positions_R=torch.from_numpy(rows.positions).to(device),
    )
