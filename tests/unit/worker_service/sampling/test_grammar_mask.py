"""Grammar masks on a worker: what is refused, and what a mask does to a draw."""

import numpy as np
import pytest
import torch

from common.errors import InvalidStep
from common.requests import SamplingParams
from common.step import GrammarMask
from worker_service.sampling.grammar_mask import masked_rows, validate_mask
from worker_service.sampling.logit_editor import NOTHING_ALLOWED
from worker_service.sampling.sampler import sample
from worker_service.sampling.sampling_states import SamplingRows, SamplingStates

VOCABULARY = 40
HANDLES = np.array([7, 8, 9], dtype=np.uint64)


def bits(*allowed: int) -> np.ndarray:
    """The words of a mask that allows these tokens."""
    flags = np.zeros(64, dtype=np.uint8)
    flags[list(allowed)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def mask(handles: list[int], *rows: np.ndarray) -> GrammarMask:
    """A mask of one position a request."""
    return GrammarMask(
        handles=np.array(handles, dtype=np.uint64),
        num_positions=np.ones(len(handles), dtype=np.int32),
        bits=np.stack(rows) if rows else np.empty((0, 0), dtype=np.int32),
    )


def greedy_rows(count: int, *, num_logprobs: int | None = None) -> SamplingRows:
    """Rows that take the best token."""
    states = SamplingStates(num_slots=count)
    for slot in range(count):
        states.replace(slot, SamplingParams(temperature=0.0, num_logprobs=num_logprobs))
    return states.rows(np.arange(count), positions=np.arange(count))


NO_DRAFTS = np.zeros(3, dtype=np.int64)


@pytest.mark.parametrize(
    ("given", "needs_mask", "message"),
    [
        (None, True, "grammar_mask: missing"),
        (mask([7], bits(1)), False, "did not say that one follows"),
        (mask([6], bits(1)), True, "handles: 6 does not sample"),
        (mask([8, 8], bits(1), bits(2)), True, "stands there twice"),
        (mask([8], bits(1)[:1]), True, "bits: 1 words a position, a vocabulary of 40 has 2"),
    ],
)
def test_masks_that_do_not_fit_are_refused(given, needs_mask, message) -> None:
    """By field, before anything is drawn."""
    with pytest.raises(InvalidStep, match=message):
        validate_mask(
            given,
            handles=HANDLES,
            num_drafts=NO_DRAFTS,
            needs_mask=needs_mask,
            vocab_size=VOCABULARY,
        )


def test_positions_are_bounded_by_the_drafts() -> None:
    """A request of two drafts has three positions at most."""
    rows = GrammarMask(
        handles=HANDLES[1:2],
        num_positions=np.array([4], dtype=np.int32),
        bits=np.stack([bits(1)] * 4),
    )
    with pytest.raises(InvalidStep, match="num_positions: 4 for request 8, which samples 3"):
        validate_mask(
            rows,
            handles=HANDLES,
            num_drafts=np.array([0, 2, 0]),
            needs_mask=True,
            vocab_size=VOCABULARY,
        )


def test_mask_that_forbids_the_best_token_changes_it() -> None:
    """The best of what is allowed is drawn; rows without a mask draw as they would."""
    logits = torch.zeros(3, VOCABULARY)
    logits[:, 9], logits[:, 33], logits[:, 5] = 3.0, 2.0, 1.0
    masked = masked_rows(mask([8], bits(5, 33)), handles=HANDLES, num_drafts=NO_DRAFTS)
    assert sample(logits, greedy_rows(3), None, masked).token_ids.tolist() == [9, 33, 9]


def test_log_probabilities_are_of_what_is_allowed() -> None:
    """A forbidden token has none left, and the others share its part."""
    logits = torch.zeros(1, VOCABULARY)
    masked = masked_rows(mask([7], bits(5, 33)), handles=HANDLES[:1], num_drafts=NO_DRAFTS[:1])
    sampled = sample(logits, greedy_rows(1, num_logprobs=2), None, masked)
    assert sampled.logprobs is not None
    assert sampled.logprobs.token_ids.tolist() == [[5, 5, 33]]
    np.testing.assert_allclose(sampled.logprobs.logprobs, np.log([[0.5, 0.5, 0.5]]), rtol=1e-6)


def test_mask_that_allows_nothing_fails_its_request() -> None:
    """It cannot be drawn from; its neighbours can."""
    logits = torch.zeros(2, VOCABULARY)
    masked = masked_rows(mask([7], bits()), handles=HANDLES[:2], num_drafts=NO_DRAFTS[:2])
    sampled = sample(logits, greedy_rows(2), None, masked)
    assert (sampled.is_sampled.tolist(), sampled.errors) == ([False, True], {0: NOTHING_ALLOWED})


def test_masks_of_drafts_apply_to_their_positions() -> None:
    """Logits rows are those of requests in turn, each with its drafts behind it."""
    logits = torch.zeros(5, VOCABULARY)
    logits[:, 9] = 1.0
    given = GrammarMask(
        handles=HANDLES[1:2],
        num_positions=np.array([2], dtype=np.int32),
        bits=np.stack([bits(3), bits(4)]),
    )
    masked = masked_rows(given, handles=HANDLES, num_drafts=np.array([0, 2, 0]))
    assert sample(logits, greedy_rows(5), None, masked).token_ids.tolist() == [9, 3, 4, 9, 9]
