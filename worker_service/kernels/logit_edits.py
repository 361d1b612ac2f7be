"""Edits of logits before temperature and filters, in place, each for the rows it names.

    keep_only:  logit[v] = -inf for every v that is not among the row's tokens
    forbid:     logit[v] = -inf
    apply_mask: logit[v] = -inf where bit v of the row's mask is 0
    add:        logit[v] += bias
    penalize:   logit[v] = logit[v] / r if logit[v] > 0 else logit[v] * r, for v in prompt or output
                logit[v] -= f * count(v in output) + p * [v in output]

with the repetition penalty r (Keskar et al., CTRL, arXiv:1909.05858), and the frequency and presence
penalties f and p as OpenAI's API defines them.

Legend: S rows of logits, R rows named here, V vocabulary, N (row, token) pairs.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """N pairs of a row and a token, int64 [N] each, on the logits' device."""

    rows: Tensor
    token_ids: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Penalties:
    """The penalties of R rows: their index among S rows int64 [R], and float32 [R] each."""

    rows_R: Tensor
    repetition_R: Tensor
    frequency_R: Tensor
    presence_R: Tensor


def keep_only(logits_SV: Tensor, allowed: Tokens) -> None:
    """Forbid all but the given tokens in every row that has one."""
    kept = logits_SV[allowed.rows, allowed.token_ids]
    logits_SV.index_fill_(0, allowed.rows, -math.inf)
    logits_SV[allowed.rows, allowed.token_ids] = kept


def forbid(logits_SV: Tensor, forbidden: Tokens) -> None:
    """Forbid tokens."""
    logits_SV[forbidden.rows, forbidden.token_ids] = -math.inf


def apply_mask(logits_SV: Tensor, rows: NDArray[np.int64], bits: NDArray[np.int32]) -> None:
    """Forbid what the masks of some rows leave out: int64 [R] and int32 [R, ceil(V / 32)] on the host."""
    vocab_size, device = logits_SV.shape[1], logits_SV.device
    bytes_RB = torch.from_numpy(np.array(bits).view(np.uint8)).to(device)
    shifts_8 = torch.arange(8, dtype=torch.uint8, device=device)
    is_out_RB8 = (bytes_RB[:, :, None] >> shifts_8) & 1 == 0
    is_out_RV = is_out_RB8.flatten(1)[:, :vocab_size]
    # Row by row where they lie: a gathered copy would have to be written back.
    for index, row in enumerate(rows.tolist()):
        logits_SV[row].masked_fill_(is_out_RV[index], -math.inf)


def add(logits_SV: Tensor, biased: Tokens, bias_N: Tensor) -> None:
    """Add a bias, float32 [N], to tokens, of which each stands once in a row."""
    logits_SV[biased.rows, biased.token_ids] += bias_N


def penalize(logits_SV: Tensor, penalties: Penalties, *, prompt: Tokens, output: Tokens) -> None:
    """Penalize what stands in prompts and outputs; their rows count among the R rows."""
    logits_RV = logits_SV[penalties.rows_R]
    counts_RV = torch.zeros(logits_RV.shape, dtype=torch.int32, device=logits_RV.device)
    ones = torch.ones_like(output.token_ids, dtype=torch.int32)
    counts_RV.index_put_((output.rows, output.token_ids), ones, accumulate=True)
    in_output_RV = counts_RV > 0
    is_seen_RV = in_output_RV.clone()
    is_seen_RV[prompt.rows, prompt.token_ids] = True
    repetition_R1 = penalties.repetition_R[:, None]
    repeated_RV = torch.where(logits_RV > 0, logits_RV / repetition_R1, logits_RV * repetition_R1)
    logits_RV = torch.where(is_seen_RV, repeated_RV, logits_RV)
    logits_RV -= penalties.frequency_R[:, None] * counts_RV
    logits_RV -= penalties.presence_R[:, None] * in_output_RV
    logits_SV[penalties.rows_R] = logits_RV
