"""Speculation keeps the target's distribution: 20,000 draws, whoever proposes, and a rule that does not."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from common.requests import SamplingParams
from common.step import Int32s, Ragged
from tests.fakes.draft_models import make_draft_model
from tests.fakes.drafted_rows import DraftedRows
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.drafting.drafter import Drafter
from worker_service.drafting.ngram import NgramDrafter
from worker_service.sampling.rejection_sampler import (
    AcceptanceRule,
    accept_drafts,
    equals_target,
)
from worker_service.sampling.sampler import sample

torch.set_num_threads(1)

VOCAB_SIZE = 50
NUM_DRAWS = 20_000
ROWS_AT_ONCE = 1000
NUM_DRAFTS = 2
SMALLEST_EXPECTED = 5.0
CONTEXT = [3, 26, 26, 6, 3, 26, 26, 6, 3, 26]
SEEDS = (1, 2, 3)
DRAFTERS = ("ngram", "draft model")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of 50 tokens, and its first layer as the small model."""
    base = tmp_path_factory.mktemp("models")

    def write(name: str, num_layers: int) -> Path:
        return write_tiny_llama(
            base / name,
            seed=1,
            vocab=VOCAB_SIZE,
            num_layers=num_layers,
            hidden=32,
            intermediate=32,
            heads=2,
        )

    return write("target", 2), write("draft", 1)


@pytest.fixture(scope="module")
def target(folders: tuple[Path, Path]) -> LlamaForCausalLM:
    """The target, as `transformers` reads it."""
    return LlamaForCausalLM.from_pretrained(folders[0], dtype=torch.float32)


def always(drafts: Int32s, target_tokens: Int32s) -> np.ndarray:
    """A broken rule: whatever is proposed stands."""
    del target_tokens
    return np.ones(len(drafts), dtype=np.bool_)


def every_fourth(drafts: Int32s, target_tokens: Int32s) -> np.ndarray:
    """A rule that is broken only now and then."""
    return equals_target(drafts, target_tokens) | (np.arange(len(drafts)) % 4 == 0)


def make_drafter(name: str, folder: Path, rows: DraftedRows) -> Drafter:
    """One of the two that serve."""
    if name == "ngram":
        return NgramDrafter(rows.states, prompt_lookup_min=2, prompt_lookup_max=4)
    return make_draft_model(
        folder,
        rows,
        vocab_size=VOCAB_SIZE,
        most_drafts=NUM_DRAFTS,
        num_blocks=8 * ROWS_AT_ONCE,
        max_num_seqs=ROWS_AT_ONCE,
        max_num_batched_tokens=16 * ROWS_AT_ONCE,
    )


def draw(
    name: str, folder: Path, target: LlamaForCausalLM, *, seed: int, rule: AcceptanceRule
) -> Iterator[list[int]]:
    """What 20,000 requests emit after the context, each with a seed of its own."""
    for first in range(0, NUM_DRAWS, ROWS_AT_ONCE):
        rows = DraftedRows(num_slots=ROWS_AT_ONCE, num_blocks=8 * ROWS_AT_ONCE)
        drafter = make_drafter(name, folder, rows)
        handles = range(ROWS_AT_ONCE)
        for handle in handles:
            sampling = SamplingParams(temperature=1.0, seed=(seed << 32) + first + handle)
            rows.add(drafter, handle, CONTEXT[:-1], sampling=sampling)
        drafts = rows.step(drafter, dict.fromkeys(handles, CONTEXT[-1:]), num_wanted=NUM_DRAFTS)
        yield from check_drafts(rows, [drafts[handle] for handle in handles], target, rule=rule)


def check_drafts(
    rows: DraftedRows, drafts: list[list[int]], target: LlamaForCausalLM, *, rule: AcceptanceRule
) -> list[list[int]]:
    """What each row emits, by the sampler and the rejection sampler that serve."""
    ends = [draft[:count] for draft in drafts for count in range(len(draft) + 1)]
    lengths = [len(draft) + 1 for draft in drafts]
    slots = rows.states.slots(np.arange(len(drafts), dtype=np.uint64))
    positions = np.array([len(CONTEXT) + len(end) for end in ends], dtype=np.int64)
    sampled = sample(
        target_logits(target, ends),
        rows.sampling.rows(np.repeat(slots, lengths), positions=positions),
    )
    emitted = accept_drafts(sampled, Ragged.from_rows(drafts), may_stand=rule).token_ids
    return [emitted.row(index).tolist() for index in range(emitted.num_rows)]


def target_logits(target: LlamaForCausalLM, ends: Sequence[list[int]]) -> Tensor:
    """The target's logits after the context and each of some ends."""
    place_by_end: dict[tuple[int, ...], int] = {}
    places = [place_by_end.setdefault(tuple(end), len(place_by_end)) for end in ends]
    logits = torch.empty(len(place_by_end), VOCAB_SIZE)
    for length in range(NUM_DRAFTS + 1):
        chosen = [(place, end) for end, place in place_by_end.items() if len(end) == length]
        if chosen:
            texts = torch.tensor([[*CONTEXT, *end] for _, end in chosen])
            with torch.inference_mode():
                logits[[place for place, _ in chosen]] = target(texts).logits[:, -1].float()
    return logits[places]


def p_value(tokens: Sequence[int], logits_V: Tensor) -> float:
    """How likely so uneven counts are if the tokens come from the logits' softmax, by chi-square."""
    expected = logits_V.double().softmax(dim=0) * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=VOCAB_SIZE).double()
    is_rare = expected < SMALLEST_EXPECTED
    expected = torch.cat([expected[~is_rare], expected[is_rare].sum().view(1)])
    counts = torch.cat([counts[~is_rare], counts[is_rare].sum().view(1)])
    expected, counts = expected[expected > 0], counts[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(expected) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_draws_have_the_targets_distribution(
    folders: tuple[Path, Path], target: LlamaForCausalLM, name: str, seed: int
) -> None:
    """First tokens, and second ones behind an accepted draft, come as the target's softmax says."""
    emitted = list(draw(name, folders[1], target, seed=seed, rule=equals_target))
    logits = target_logits(target, [[]])
    assert p_value([tokens[0] for tokens in emitted], logits[0]) > 0.01
    accepted = [tokens for tokens in emitted if len(tokens) > 1]
    ((first, count),) = Counter(tokens[0] for tokens in accepted).most_common(1)
    assert count > 200, "drafts are accepted"
    assert len(accepted) < NUM_DRAWS, "drafts are refused"
    behind = [tokens[1] for tokens in accepted if tokens[0] == first]
    assert p_value(behind, target_logits(target, [[first]])[0]) > 0.01


@pytest.mark.parametrize("rule", [always, every_fourth])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_broken_rule_is_found(
    folders: tuple[Path, Path], target: LlamaForCausalLM, name: str, rule: AcceptanceRule
) -> None:
    """The same test fails when drafts stand that are not what the target draws."""
    emitted = draw(name, folders[1], target, seed=SEEDS[0], rule=rule)
    assert p_value([tokens[0] for tokens in emitted], target_logits(target, [[]])[0]) < 1e-6
