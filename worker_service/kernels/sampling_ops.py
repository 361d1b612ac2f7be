"""What a draw from logits is made of: Gumbel noise and the filters min_p, top_k and top_p.

Noise. Adding g = -ln(-ln u) to every logit and taking the argmax draws from their softmax
(Gumbel-max). Here u is a pure function of (seed, position, token id), so a replay, another rank or
another batch draws the same token. The function nests three levels of SplitMix64, whose output i
from state s is mix(s + (i + 1) * GOLDEN): seed -> position -> token id. SplitMix64: Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the constants are those of
S. Vigna's public-domain splitmix64.c. 64-bit integers wrap, as in C with unsigned integers.

Filters set what they drop to -inf and never all of a row. Ties keep the lowest token ids: a filter
that keeps n tokens keeps exactly n.
"""

import math

import torch
from torch import Tensor

# R rows, V vocabulary, K largest values looked at, W values of any shape

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)

_UNIT_BITS = 53
_SMALLEST_UNIT = 2.0**-54
_LARGEST_UNIT = 1 - 2.0**-24

_TOP_P_FIRST_LOOK = 1024


def _shift_right(x_W: Tensor, bits: int) -> Tensor:
    """Shift int64 right and fill with zeros; torch itself fills with the sign."""
    return (x_W >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x_W: Tensor) -> Tensor:
    """Finish SplitMix64 in place: every input bit reaches every output bit."""
    x_W ^= _shift_right(x_W, 30)
    x_W *= _MIX_1
    x_W ^= _shift_right(x_W, 27)
    x_W *= _MIX_2
    x_W ^= _shift_right(x_W, 31)
    return x_W


def _output(state_W: Tensor, index_W: Tensor) -> Tensor:
    """Output number index of SplitMix64 from a state; the two broadcast."""
    return _mix(state_W + (index_W + 1) * _GOLDEN)


def gumbel_noise(seeds_R: Tensor, positions_R: Tensor, *, vocab_size: int) -> Tensor:
    """Noise float32 [R, V] from int64 seeds (64 bits, the sign has no meaning) and positions."""
    row_state_R1 = _output(_mix(seeds_R + _GOLDEN), positions_R).unsqueeze(1)
    token_ids_V = torch.arange(vocab_size, dtype=torch.int64, device=seeds_R.device)
    bits_RV = _output(row_state_R1, token_ids_V)
    # u is 1 - unit: small units, which win the argmax, keep their full relative precision. The
    # bounds keep the noise finite.
    unit_RV = _shift_right(bits_RV, 64 - _UNIT_BITS).to(torch.float32)
    unit_RV.mul_(2.0**-_UNIT_BITS).clamp_(_SMALLEST_UNIT, _LARGEST_UNIT)
    return unit_RV.neg_().log1p_().neg_().log_().neg_()


def keep_largest(logits_RV: Tensor, counts_R: Tensor, *, floor_R: Tensor) -> Tensor:
    """Mask bool [R, V] of each row's counts largest logits; floor is the smallest of those.

    Of the logits equal to the floor, those of the lowest token ids fill the count.
    """
    above_RV = logits_RV > floor_R.unsqueeze(1)
    at_floor_RV = logits_RV == floor_R.unsqueeze(1)
    num_at_floor_R = counts_R - above_RV.sum(dim=1)
    order_RV = at_floor_RV.cumsum(dim=1, dtype=torch.int32)
    return above_RV | (at_floor_RV & (order_RV <= num_at_floor_R.unsqueeze(1)))


def _drop_all_but(logits_RV: Tensor, counts_R: Tensor, *, largest_RK: Tensor) -> Tensor:
    """Keep each row's counts largest logits, given at least that many of them in order."""
    floor_R = largest_RK.gather(1, (counts_R - 1).unsqueeze(1)).squeeze(1)
    kept_RV = keep_largest(logits_RV, counts_R, floor_R=floor_R)
    return logits_RV.masked_fill(~kept_RV, -math.inf)


def apply_min_p(logits_RV: Tensor, min_p_R: Tensor) -> Tensor:
    """Drop the tokens less likely than min_p times the most likely one."""
    floor_R = logits_RV.amax(dim=1) + min_p_R.log()
    return logits_RV.masked_fill(logits_RV < floor_R.unsqueeze(1), -math.inf)


def apply_top_k(logits_RV: Tensor, top_k_R: Tensor, *, largest_k: int) -> Tensor:
    """Keep exactly top_k tokens a row, 0 keeps all; largest_k is the largest top_k, host side."""
    vocab_size = logits_RV.shape[1]
    width = min(largest_k, vocab_size)
    largest_RK = logits_RV.topk(width, dim=1).values
    limited_RV = _drop_all_but(logits_RV, top_k_R.clamp(1, width), largest_RK=largest_RK)
    return torch.where((top_k_R > 0).unsqueeze(1), limited_RV, logits_RV)


def apply_top_p(logits_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Keep the fewest most likely tokens that together have at least top_p of the mass; 1 keeps all."""
    is_limited_R = top_p_R < 1
    largest_RK, counts_R = _top_p_counts(logits_RV, top_p_R)
    limited_RV = _drop_all_but(logits_RV, counts_R, largest_RK=largest_RK)
    return torch.where(is_limited_R.unsqueeze(1), limited_RV, logits_RV)


def _top_p_counts(logits_RV: Tensor, top_p_R: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logits in order, and how many of them top_p keeps.

    Few tokens hold the mass as a rule, so more are sorted only when they do not.
    """
    vocab_size = logits_RV.shape[1]
    normalizer_R1 = logits_RV.logsumexp(dim=1, keepdim=True)
    width = min(_TOP_P_FIRST_LOOK, vocab_size)
    while True:
        largest_RK = logits_RV.topk(width, dim=1).values
        mass_RK = (largest_RK - normalizer_R1).exp().cumsum(dim=1)
        is_covered_R = (mass_RK[:, -1] >= top_p_R) | (top_p_R >= 1)
        if width == vocab_size or bool(is_covered_R.all()):
            break
        width = min(8 * width, vocab_size)
    # A token stays when the mass before it is short of top_p; the first always does.
    counts_R = 1 + (mass_RK[:, :-1] < top_p_R.unsqueeze(1)).sum(dim=1)
    return largest_RK, counts_R
