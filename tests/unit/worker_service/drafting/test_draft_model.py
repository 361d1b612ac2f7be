"""The draft model proposes what the small model says, whatever was computed, kept or thrown away before."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from common.errors import ModelError
from common.requests import SamplingParams
from common.step import Ragged
from tests.fakes.draft_models import make_draft_model
from tests.fakes.drafted_rows import DraftedRows
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import TransformersReference
from worker_service.drafting.draft_model import DraftModel
from worker_service.sampling.sampler import sample

torch.set_num_threads(1)

PROMPT = [40, 41, 42, 200, 7, 9, 65, 66, 12, 3, 77]
NUM_BLOCKS = 64
MOST_DRAFTS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose text wanders."""
    return write_tiny_llama(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> TransformersReference:
    """What `transformers` says of it."""
    return TransformersReference(folder)


@pytest.fixture
def rows() -> DraftedRows:
    """No requests yet."""
    return DraftedRows(num_blocks=NUM_BLOCKS)


@pytest.fixture
def drafter(folder: Path, rows: DraftedRows) -> DraftModel:
    """A draft model over those rows."""
    return make_draft_model(folder, rows)


def expected(reference: TransformersReference, tokens: list[int], count: int) -> list[int]:
    """How the reference goes on."""
    return list(reference.greedy(tokens, count).token_ids)


def test_drafts_are_the_small_models_own_text(rows, drafter, reference):
    """After a prompt and whatever the target says, drafts go on as the small model alone would."""
    rows.add(drafter, 1, PROMPT)
    tokens = [*PROMPT]
    for emitted in ([5], [77, 8], [9], [200, 1, 2]):
        tokens += emitted
        assert rows.step(drafter, {1: emitted}, num_wanted=4)[1] == expected(reference, tokens, 4)


@pytest.mark.parametrize("num_accepted", range(MOST_DRAFTS + 1))
def test_drafts_after_accepted_ones_need_no_second_look(rows, drafter, reference, num_accepted):
    """However many drafts were right, over many blocks: the text of the small model and no other."""
    rows.add(drafter, 1, PROMPT)
    tokens, drafts = [*PROMPT], list[int]()
    for index in range(8):
        emitted = [*drafts[:num_accepted], 100 + index]
        tokens += emitted
        drafts = rows.step(drafter, {1: emitted}, num_wanted=MOST_DRAFTS)[1]
        assert drafts == expected(reference, tokens, MOST_DRAFTS)


def test_accepted_drafts_are_computed_once(rows, drafter):
    """Of accepted drafts only the last and what no block had room for is computed a second time."""
    rows.add(drafter, 1, PROMPT[:9])
    drafts = rows.step(drafter, {1: [5]}, num_wanted=4)[1]
    slot = np.array([rows.states.slot(1)])
    # Ten tokens are known, the drafts 10 to 13 were drawn, three computed, two of them in own blocks.
    for accepted, start in ([], 10), (drafts[:1], 11), (drafts[:2], 12), (drafts, 12):
        rows.states.tokens.write_behind(slot, Ragged.from_rows([[*accepted, 259]]))
        ends = np.array([10 + len(accepted) + 1])
        assert drafter.progress.starts(slot, ends).tolist() == [start]


def test_prompts_are_computed_along(rows, drafter, reference):
    """A prompt in chunks, beside a row that decodes: the drafts of both are right."""
    rows.add(drafter, 1, PROMPT)
    rows.add(drafter, 2, PROMPT[::-1])
    rows.prefill(drafter, 2, 4)
    first = rows.step(drafter, {1: [5]}, num_wanted=3)
    rows.prefill(drafter, 2, 5)
    both = rows.step(drafter, {1: [6], 2: [7]}, num_wanted=3)
    assert first[1] == expected(reference, [*PROMPT, 5], 3)
    assert both[1] == expected(reference, [*PROMPT, 5, 6], 3)
    assert both[2] == expected(reference, [*PROMPT[::-1], 7], 3)


def test_blocks_computed_for_one_request_serve_another(rows, drafter, reference):
    """A prefix that the target need not compute is there for the draft model, too."""
    rows.add(drafter, 1, PROMPT)
    rows.step(drafter, {1: [5]}, num_wanted=0)
    shared = rows.blocks(1)[:2]
    rows.add(drafter, 2, [*PROMPT[:8], 99, 98], shared_blocks=shared)
    drafts = rows.step(drafter, {2: [97]}, num_wanted=3)
    assert drafts[2] == expected(reference, [*PROMPT[:8], 99, 98, 97], 3)


def test_a_slot_forgets_the_request_before(rows, drafter, reference):
    """A request that ends leaves nothing to the one that has its slot and its blocks after it."""
    rows.add(drafter, 1, PROMPT)
    rows.step(drafter, {1: [5]}, num_wanted=4)
    rows.remove(1)
    rows.add(drafter, 2, PROMPT[3:])
    assert rows.step(drafter, {2: [5]}, num_wanted=4)[2] == expected(reference, [*PROMPT[3:], 5], 4)


def test_a_row_without_drafts_catches_up(folder, reference):
    """What was emitted while no drafts were wanted is computed before the next ones, in parts."""
    rows = DraftedRows(num_blocks=NUM_BLOCKS)
    drafter = make_draft_model(folder, rows, max_num_batched_tokens=4)
    rows.add(drafter, 1, PROMPT)
    tokens = [*PROMPT]
    for token in range(50, 58):
        tokens.append(token)
        assert rows.step(drafter, {1: [token]}, num_wanted=0) == {1: []}
    num_steps = 0
    while not (drafts := rows.step(drafter, {1: [7]}, num_wanted=2)[1]):
        num_steps += 1
        tokens.append(7)
    assert 1 < num_steps < 8
    assert drafts == expected(reference, [*tokens, 7], 2)


def test_rows_want_different_numbers_of_drafts(rows, drafter, reference):
    """Each has at most what it wants, and none where it wants none."""
    for handle in (1, 2, 3):
        rows.add(drafter, handle, PROMPT[handle:])
    rows.step(drafter, {1: [5], 2: [6], 3: [7]}, num_wanted=1)
    drafts = rows.step(drafter, {1: [5], 2: [6], 3: [7]}, num_wanted={1: 4, 2: 0, 3: 2})
    assert [len(drafts[handle]) for handle in (1, 2, 3)] == [4, 0, 2]
    assert drafts[1] == expected(reference, [*PROMPT[1:], 5, 5], 4)
    assert drafts[3] == expected(reference, [*PROMPT[3:], 7, 7], 2)


def test_drafts_end_where_the_small_models_positions_do(tmp_path):
    """Past the longest sequence it was made for, it proposes nothing and computes nothing."""
    folder = write_tiny_llama(tmp_path, num_layers=1, max_position_embeddings=14)
    rows = DraftedRows(num_blocks=NUM_BLOCKS)
    drafter = make_draft_model(folder, rows)
    rows.add(drafter, 1, PROMPT)
    counts = [len(rows.step(drafter, {1: [5]}, num_wanted=4)[1]) for _ in range(5)]
    assert counts == [3, 2, 1, 0, 0]


def test_a_draft_is_drawn_with_the_targets_noise(folder, rows, drafter, reference):
    """With a temperature the draft is the token the request's own seed draws from those logits."""
    sampling = SamplingParams(temperature=0.9, seed=11, top_p=0.95)
    rows.add(drafter, 1, PROMPT, sampling=sampling)
    drafts = rows.step(drafter, {1: [5]}, num_wanted=3)[1]
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = [*PROMPT, 5]
    slots = np.array([rows.states.slot(1)])
    for draft in drafts:
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[:, -1]
        drawn = sample(logits, rows.sampling.rows(slots, positions=np.array([len(tokens)])))
        assert draft == drawn.token_ids[0]
        tokens.append(draft)
    assert drafts != expected(reference, [*PROMPT, 5], 3)


def test_another_vocabulary_is_refused(tmp_path, rows):
    """A draft model of another size of vocabulary could propose tokens that do not exist."""
    folder = write_tiny_llama(tmp_path, num_layers=1, vocab=300)
    with pytest.raises(ModelError, match="vocabulary of 300 tokens and the model one of 260"):
        make_draft_model(folder, rows)


def test_memory_counts_parameters_and_spare_blocks(rows, drafter):
    """What the cache takes is what the arithmetic was told: the target's blocks and spare ones."""
    memory = drafter.memory
    (group,) = memory.kv_cache_groups
    assert group.bytes_per_block == 2 * 6 * 2 * 16 * 4 * 4
    # Four rows, each with two blocks of four for five drafts.
    assert memory.num_spare_blocks == 8
    assert drafter.initialize_kv_cache(10) == 10 * group.bytes_per_block + memory.spare_bytes
