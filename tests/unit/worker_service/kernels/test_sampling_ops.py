"""Gumbel noise and the sampling filters."""

import math

import numpy as np
import pytest
import torch

from worker_service.kernels.sampling_ops import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    gumbel_noise,
)

torch.set_num_threads(1)

MASK_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """SplitMix64's finisher in unbounded integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK_64
    return value ^ (value >> 31)


def output(state: int, index: int) -> int:
    """Output `index` of SplitMix64 from `state`."""
    return mix((state + (index + 1) * GOLDEN) & MASK_64)


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def noise(seed: int, position: int, *, vocab_size: int) -> torch.Tensor:
    """Noise of one row."""
    return gumbel_noise(
        torch.tensor([signed(seed)]), torch.tensor([position]), vocab_size=vocab_size
    )[0]


def test_reference_generator_is_splitmix64():
    """The integer reference below gives the published first output of SplitMix64 from state 1234567."""
    assert output(1234567, 0) == 6457827717110365317


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 17), ((1 << 64) - 1, 4095), (2**40, 3)])
def test_noise_is_nested_splitmix64(seed, position):
    """Noise equals -ln(-ln u) with u from three nested levels of SplitMix64 in exact integers."""
    state = output(output(seed, 0), position)
    units = np.array([(output(state, token) >> 11) / 2**53 for token in range(50)])
    expected = -np.log(-np.log1p(-units))
    values = noise(seed, position, vocab_size=50).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary():
    """A larger vocabulary only adds noise values at its end."""
    assert torch.equal(noise(5, 9, vocab_size=10), noise(5, 9, vocab_size=300)[:10])


def test_noise_has_the_gumbel_distribution():
    """Over seeds, positions and tokens the noise fits the Gumbel distribution and is finite."""
    seeds = torch.arange(64)
    values = gumbel_noise(seeds, seeds * 3, vocab_size=1000).flatten()
    assert values.isfinite().all()
    assert len(values.unique()) > 0.99 * len(values)
    counts = torch.histc((-(-values).exp()).exp(), bins=20, min=0, max=1).numpy()
    expected = len(values) / 20
    # 19 degrees of freedom: 43.8 is exceeded once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 43.8


def test_neighbouring_keys_have_unrelated_noise():
    """Noise of neighbouring seeds, positions and tokens is uncorrelated."""
    rows = [noise(7, 7, vocab_size=20000), noise(8, 7, vocab_size=20000)]
    rows += [noise(7, 8, vocab_size=20000), rows[0].roll(1)]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(4)
    assert correlation.abs().max() < 0.04


def kept(filtered: torch.Tensor) -> list[list[int]]:
    """Token ids a filter kept, per row."""
    return [row.isfinite().nonzero()[:, 0].tolist() for row in filtered]


def reference_order(row: np.ndarray) -> np.ndarray:
    """Token ids from the most to the least likely, ties by the lowest id."""
    return np.argsort(-row, kind="stable")


def rounded_logits(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Seeded logits on a coarse grid, so that ties are common."""
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(num_rows, vocab_size, generator=generator) * 4).round() / 2


def test_top_k_keeps_exactly_k_with_ties_to_the_lowest_ids():
    """Each row keeps its own k best tokens, 0 keeps all, and ties never add one."""
    logits = rounded_logits(5, 40)
    top_k = [1, 3, 0, 40, 100]
    result = apply_top_k(logits, torch.tensor(top_k), largest_k=100)
    for row, k, ids in zip(logits.numpy(), top_k, kept(result), strict=True):
        assert ids == sorted(reference_order(row)[: k or 40].tolist())


@pytest.mark.parametrize("vocab_size", [40, 3000])
def test_top_p_keeps_the_smallest_set_with_the_mass(vocab_size):
    """Against a sorted reference; the larger vocabulary is flat, so the first look is too short."""
    logits = rounded_logits(6, vocab_size) / (1 if vocab_size == 40 else 20)
    top_p = [0.01, 0.3, 0.5, 0.9, 0.999, 1.0]
    for row, p, ids in zip(
        logits.numpy(), top_p, kept(apply_top_p(logits, torch.tensor(top_p))), strict=True
    ):
        order = reference_order(row)
        probabilities = np.exp(row[order].astype(np.float64))
        mass_before = np.cumsum(probabilities / probabilities.sum()) - (
            probabilities / probabilities.sum()
        )
        assert ids == sorted(order[mass_before < p].tolist())


def test_min_p_drops_below_its_share_of_the_best():
    """A token stays when its probability is at least min_p times the largest; 0 keeps all."""
    logits = torch.log(torch.tensor([[0.5, 0.26, 0.2, 0.04]] * 4))
    result = apply_min_p(logits, torch.tensor([0.0, 0.1, 0.5, 1.0]))
    assert kept(result) == [[0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]


def test_filters_after_filters_see_only_survivors():
    """top_p counts the mass of what top_k left, and dropped tokens never come back."""
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    limited = apply_top_k(logits, torch.tensor([2]), largest_k=2)
    assert kept(apply_top_p(limited, torch.tensor([0.5]))) == [[0]]
    assert kept(apply_top_p(limited, torch.tensor([0.6]))) == [[0, 1]]
    assert (limited == -math.inf).sum() == 2
