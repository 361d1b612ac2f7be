"""One token a row at random, by the Gumbel maximum.

    scaled = (logits - max) / temperature
    token = argmax(scaled + noise) over those with scaled >= ln(min_p)

The noise, a function of seed, position and token id alone, and min_p are those of `sampling_ops`.

Legend: R rows, V vocabulary.
"""

import torch
from torch import Tensor

from worker_service.kernels.native import native_kernels_for
from worker_service.kernels.sampling_ops import apply_min_p, gumbel_noise
from worker_service.kernels.triton_use import draw_triton, runs_triton


def draw_tokens(
    logits_RV: Tensor,
    *,
    temperature_R: Tensor,
    min_p_R: Tensor,
    seeds_R: Tensor,
    positions_R: Tensor,
) -> Tensor:
    """Tokens, integers [R]; logits float32 and dense, columns on the same device.

    Rounding in the last bits of the noise may make two forms differ where two tokens are as good
    as equal.
    """
    if runs_triton(logits_RV):
        return draw_triton().draw_tokens_triton(
            logits_RV,
            temperature_R=temperature_R,
            min_p_R=min_p_R,
            seeds_R=seeds_R,
            positions_R=positions_R,
        )
    kernels = native_kernels_for(logits_RV)
    if kernels is None:
        return draw_tokens_reference(
            logits_RV,
            temperature_R=temperature_R,
            min_p_R=min_p_R,
            seeds_R=seeds_R,
            positions_R=positions_R,
        )
    num_rows, vocabulary = logits_RV.shape
    tokens_R = torch.empty(num_rows, dtype=torch.int32)
    kernels.draw(
        logits_RV.data_ptr(),
        temperature_R.data_ptr(),
        min_p_R.data_ptr(),
        seeds_R.data_ptr(),
        positions_R.data_ptr(),
        num_rows,
        vocabulary,
        tokens_R.data_ptr(),
    )
    return tokens_R


def draw_tokens_reference(
    logits_RV: Tensor,
    *,
    temperature_R: Tensor,
    min_p_R: Tensor,
    seeds_R: Tensor,
    positions_R: Tensor,
) -> Tensor:
    """The formula in torch, on any device."""
    scaled_RV = scale(logits_RV, temperature_R)
    if bool((min_p_R > 0).any()):
        scaled_RV = apply_min_p(scaled_RV, min_p_R)
    noise_RV = gumbel_noise(seeds_R, positions_R, vocab_size=logits_RV.shape[1])
    return scaled_RV.add_(noise_RV).argmax(dim=1)


def scale(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Logits over the temperature; the largest becomes 0 first, so that none overflows."""
    scaled_RV = logits_RV - logits_RV.amax(dim=1, keepdim=True)
    return scaled_RV.div_(temperature_R.unsqueeze(1))
