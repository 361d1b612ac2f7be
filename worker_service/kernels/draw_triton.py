"""One token a row by the Gumbel maximum on a GPU, with the noise of `sampling_ops`.

    scaled = (logits - max) / temperature
    token = argmax(scaled + noise) over those with scaled >= ln(min_p)

Rows of temperature 0 take the best token. Ties go to the lowest token id. Parts of the vocabulary are
looked at by programs of their own: first for the best logits, then for the best sums, and a part's
winner is kept; who wins among the parts is a matter of a few values. `draw` holds the torch reference.

Legend: R rows, V vocabulary, C parts of it.
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


def draw_tokens_triton(
    logits_RV: Tensor,
    *,
    temperature_R: Tensor,
    min_p_R: Tensor,
    seeds_R: Tensor,
    positions_R: Tensor,
) -> Tensor:
    """Tokens int64 [R]; logits float32 with dense rows, columns on the same device."""
    num_rows, vocabulary = logits_RV.shape
    num_parts = triton.cdiv(vocabulary, _AT_ONCE)
    device = logits_RV.device
    best_RC = torch.empty((num_rows, num_parts), dtype=torch.float32, device=device)
    ids_RC = torch.empty((num_rows, num_parts), dtype=torch.int64, device=device)
    count_launch("draw")
    if not num_rows:
        return ids_RC.new_empty(0)
    max_R = logits_RV.amax(dim=1)
    draw_kernel[(num_rows, num_parts)](
        logits_RV,
        max_R,
        temperature_R,
        min_p_R,
        seeds_R,
        positions_R,
        best_RC,
        ids_RC,
        vocabulary,
        logits_RV.stride(0),
        num_parts,
        AT_ONCE=_AT_ONCE,
        num_warps=4,
    )
    # argmax may name any of equal parts, so the first is looked for.
    is_best_RC = best_RC == best_RC.amax(dim=1, keepdim=True)
    first_R1 = is_best_RC.to(torch.int8).argmax(dim=1, keepdim=True)
    return ids_RC.gather(1, first_R1).squeeze(1)


@triton.jit
def _mix(x):
    """The finish of SplitMix64; x is uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def draw_kernel(
    logits_ptr,  # float32 [R, V], V contiguous
    max_ptr,  # float32 [R]
    temperature_ptr,  # float32 [R]
    min_p_ptr,  # float32 [R]
    seeds_ptr,  # int64 [R]
    positions_ptr,  # int64 [R]
    best_ptr,  # float32 [R, C]
    ids_ptr,  # int64 [R, C]
    vocabulary,
    logits_stride_r,
    num_parts,
    AT_ONCE: tl.constexpr,
):
    """The winner of one part of one row's vocabulary."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * AT_ONCE + tl.arange(0, AT_ONCE)
    is_token = token < vocabulary
    logits = tl.load(logits_ptr + row * logits_stride_r + token, mask=is_token, other=float("-inf"))
    temperature = tl.load(temperature_ptr + row)
    value = logits - tl.load(max_ptr + row)
    if temperature > 0:
        value = value / temperature
        min_p = tl.load(min_p_ptr + row)
        if min_p > 0:
            value = tl.where(value < tl.log(min_p), float("-inf"), value)
        golden: tl.constexpr = 0x9E3779B97F4A7C15
        seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
        position = tl.load(positions_ptr + row).to(tl.uint64, bitcast=True)
        state = _mix(_mix(seed + golden) + (position + 1) * golden)
        bits = _mix(state + (token.to(tl.uint64) + 1) * golden)
        unit = (bits >> 11).to(tl.float32) * 1.1102230246251565e-16
        unit = tl.minimum(tl.maximum(unit, 5.551115123125783e-17), 0.9999999403953552)
        # ln(1 - unit): a series where 1 - unit would round to 1.
        log1m = tl.where(unit < 1e-4, -unit * (1.0 + unit * 0.5), tl.log(1.0 - unit))
        value = value - tl.log(-log1m)
    best = tl.max(value, axis=0)
    winner = tl.min(tl.where(value == best, token, vocabulary), axis=0)
    tl.store(best_ptr + row * num_parts + part, best)
    tl.store(ids_ptr + row * num_parts + part, winner.to(tl.int64))
