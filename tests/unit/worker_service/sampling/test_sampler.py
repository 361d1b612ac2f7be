"""The sampler: rows in, tokens and log-probabilities out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from common.requests import SamplingParams
from worker_service.sampling.sampler import sample
from worker_service.sampling.sampling_states import SamplingRows, SamplingStates

torch.set_num_threads(1)


def rows_of(params: list[SamplingParams], *, positions: list[int] | None = None) -> SamplingRows:
    """Sampling rows, one per parameter set."""
    states = SamplingStates(num_slots=1)
    for slot, each in enumerate(params):
        states.replace(slot, each)
    places = np.array(positions or range(len(params)), dtype=np.int64)
    return states.rows(np.arange(len(params)), positions=places)


def seeded_logits(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Seeded normal logits."""
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 3


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Distance of counts from what the probabilities expect."""
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_follow_the_softmax(over):
    """Over seeds as over positions the drawn tokens fit softmax(logits / temperature)."""
    count, logits = 20000, torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    one = SamplingParams(temperature=0.7, seed=11)
    if over == "seeds":
        rows = rows_of([replace(one, seed=seed) for seed in range(count)], positions=[3] * count)
    else:
        rows = rows_of([one] * count)
    tokens = sample(logits.expand(count, 5), rows).token_ids
    probabilities = torch.softmax(logits / 0.7, dim=0).numpy()
    # 4 degrees of freedom: 18.5 is exceeded once in a thousand.
    assert chi_square(np.bincount(tokens, minlength=5), probabilities) < 18.5


def mixed_params() -> list[SamplingParams]:
    """Rows that use each filter, all, none, and greedy ones between them."""
    return [
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(temperature=0.0, seed=2),
        SamplingParams(temperature=1.5, seed=3, top_k=4),
        SamplingParams(temperature=1.5, seed=4, top_p=0.6),
        SamplingParams(temperature=1.5, seed=5, min_p=0.2),
        SamplingParams(temperature=1.2, seed=(1 << 64) - 1, top_k=9, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=0.0, seed=7, top_k=2, num_logprobs=3),
    ]


def test_a_row_draws_the_same_in_any_batch():
    """Alone, together and in another order every row gets the same token."""
    params, logits = mixed_params(), seeded_logits(7, 2000)
    positions = [100 + index for index in range(7)]
    together = sample(logits, rows_of(params, positions=positions)).token_ids
    order = [3, 6, 0, 5, 1, 4, 2]
    reordered = sample(
        logits[order],
        rows_of([params[i] for i in order], positions=[positions[i] for i in order]),
    ).token_ids
    assert reordered.tolist() == together[order].tolist()
    for index in range(7):
        alone = rows_of([params[index]], positions=[positions[index]])
        assert sample(logits[index : index + 1], alone).token_ids[0] == together[index]


def test_seed_and_position_change_the_draw():
    """On flat logits another seed or position draws another token."""
    flat = torch.zeros(1, 100000)

    def draw(seed: int, position: int) -> int:
        rows = rows_of([SamplingParams(seed=seed)], positions=[position])
        return int(sample(flat, rows).token_ids[0])

    assert draw(1, 5) == draw(1, 5)
    assert len({draw(1, 5), draw(2, 5), draw(1, 6)}) == 3


def test_greedy_ties_go_to_the_lowest_id():
    """Temperature 0 takes the first of equal logits and needs no noise."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert sample(logits, rows_of([SamplingParams(temperature=0.0)])).token_ids.tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-40, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    """No temperature above 0 overflows; the smallest take the best token."""
    logits = torch.tensor([[500.0, -2e4, 501.0, 3e4]])
    rows = rows_of([SamplingParams(temperature=temperature, seed=9)])
    assert sample(logits, rows).token_ids.tolist() == [3]


def test_top_k_of_one_takes_the_best_at_any_temperature():
    """One kept token is drawn whatever the noise, ties by the lowest id."""
    logits = torch.tensor([[0.0, 2.0, 2.0]]).expand(200, 3)
    rows = rows_of([SamplingParams(temperature=5.0, top_k=1, seed=s) for s in range(200)])
    assert set(sample(logits, rows).token_ids.tolist()) == {1}


def test_filtered_draws_follow_the_renormalized_softmax():
    """min_p, then top_k, then top_p leave three tokens, drawn in proportion to their probabilities."""
    probabilities = np.array([0.35, 0.25, 0.2, 0.15, 0.04, 0.01])
    count = 5000
    params = SamplingParams(min_p=0.1, top_k=4, top_p=0.7)
    rows = rows_of([params] * count)
    logits = torch.log(torch.tensor(probabilities, dtype=torch.float32)).expand(count, 6)
    counts = np.bincount(sample(logits, rows).token_ids, minlength=6)
    assert counts[3:].sum() == 0
    # 2 degrees of freedom: 13.8 is exceeded once in a thousand.
    assert chi_square(counts[:3], probabilities[:3] / probabilities[:3].sum()) < 13.8


def test_logprobs_are_raw_and_chosen_first():
    """Neither temperature nor filters touch log-probabilities; the rank counts logits at least as large."""
    logits = torch.tensor([[1.0, 4.0, 2.0, 2.0, 0.0]])
    rows = rows_of([SamplingParams(temperature=3.0, top_k=1, num_logprobs=3)])
    logprobs = sample(logits, rows).logprobs
    assert logprobs is not None
    assert logprobs.token_ids.tolist() == [[1, 1, 2, 3]]
    expected = torch.log_softmax(logits[0], dim=0)[[1, 1, 2, 3]]
    np.testing.assert_allclose(logprobs.logprobs[0], expected, rtol=1e-6)
    assert logprobs.ranks.tolist() == [1]


def test_tied_tokens_share_the_larger_rank():
    """A chosen token that ties with another one has the rank of both together."""
    logits = torch.tensor([[2.0, 2.0, 1.0]])
    logprobs = sample(logits, rows_of([SamplingParams(temperature=0.0, num_logprobs=0)])).logprobs
    assert logprobs is not None
    assert logprobs.ranks.tolist() == [2]
    assert logprobs.token_ids.tolist() == [[0]]
    assert math.isclose(logprobs.logprobs[0, 0], 2 - math.log(2 * math.e**2 + math.e), rel_tol=1e-6)


def test_logprobs_come_for_every_row_when_one_asked():
    """The widest row sets the columns; without any asking there are none."""
    logits = seeded_logits(7, 50)
    logprobs = sample(logits, rows_of(mixed_params())).logprobs
    assert logprobs is not None
    assert logprobs.token_ids.shape == (7, 4)
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :3]
    assert logprobs.token_ids[:, 1:].tolist() == order.tolist()
    assert sample(logits[:6], rows_of(mixed_params()[:6])).logprobs is None


def test_no_rows_draw_nothing():
    """A batch in which no row samples gives no tokens."""
    assert len(sample(torch.empty(0, 9), rows_of([])).token_ids) == 0
