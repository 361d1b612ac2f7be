"""What every drafter keeps to, and that a head on the target's hidden states gets those it needs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from common.requests import SamplingParams
from common.speculation import DRAFT_MODEL, NGRAM, SpeculationConfig
from common.worker_api import MemoryBudget
from tests.fakes.byte_tokenizer import VOCAB_SIZE
from tests.fakes.draft_models import make_draft_model
from tests.fakes.drafted_rows import DraftedRows
from tests.fakes.head_drafter import HeadDrafter
from tests.fakes.step_driver import StepDriver, make_runner
from tests.fakes.tiny_checkpoint import save_tensors, write_tiny_llama
from worker_service.drafting.drafter import Drafter, NoDrafter
from worker_service.drafting.ngram import NgramDrafter
from worker_service.models.decoder import DecoderModel
from worker_service.models.loading import load_model
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.groups import Ranks

torch.set_num_threads(1)

DRAFTERS = ("none", "ngram", "draft model", "head")
PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]
NUM_DRAFTS = 4
DRAWN = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose layers add nothing: the next token follows from the last one alone."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("memoryless"), num_layers=6)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    save_tensors(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> DecoderModel:
    """That model, whole."""
    spec = read_model_spec(folder)
    return load_model(
        folder,
        spec=spec,
        layers=range(spec.num_layers),
        is_first=True,
        is_last=True,
        ranks=Ranks(),
        dtype=torch.float32,
        device=torch.device("cpu"),
    ).model


MakeDrafter = Callable[[DraftedRows], Drafter]


@pytest.fixture(params=DRAFTERS)
def make_drafter(request: pytest.FixtureRequest, folder: Path, target: DecoderModel) -> MakeDrafter:
    """Makes each of the drafters in turn, over the rows of a test."""
    makers: dict[str, MakeDrafter] = {
        "none": lambda rows: NoDrafter(),
        "ngram": lambda rows: NgramDrafter(rows.states, prompt_lookup_min=1, prompt_lookup_max=3),
        "draft model": lambda rows: make_draft_model(folder, rows),
        "head": lambda rows: HeadDrafter(target),
    }
    return makers[request.param]


def hidden(target: DecoderModel, emitted: list[list[int]], last: list[int]) -> torch.Tensor:
    """Hidden states at the positions that rows' tokens were drawn from, where layers add nothing."""
    drawn_from = [
        token
        for tokens, before in zip(emitted, last, strict=True)
        for token in [before, *tokens[:-1]]
    ]
    return target.embed(torch.tensor(drawn_from))


def test_drafts_are_few_and_are_tokens(make_drafter, target):
    """Never more than a row wants, none where it wants none, and of the vocabulary."""
    rows = DraftedRows()
    drafter = make_drafter(rows)
    for handle in (1, 2, 3):
        rows.add(drafter, handle, PROMPT, sampling=DRAWN)
    wanted = {1: 0, 2: 1, 3: NUM_DRAFTS}
    last = {handle: PROMPT[-1] for handle in wanted}
    for emitted in ({1: [9], 2: [9], 3: [9]}, {1: [7, 8], 2: [7], 3: [7, 8, 9]}):
        drafts = rows.step(
            drafter,
            emitted,
            num_wanted=wanted,
            hidden_ED=hidden(target, list(emitted.values()), list(last.values())),
        )
        assert all(len(drafts[handle]) <= wanted[handle] for handle in wanted)
        assert all(0 <= token < VOCAB_SIZE for draft in drafts.values() for token in draft)
        last = {handle: tokens[-1] for handle, tokens in emitted.items()}


def test_what_is_proposed_depends_on_the_row_alone(make_drafter, target):
    """Beside another row, in another slot and in other blocks, the same drafts."""
    alone, together = DraftedRows(), DraftedRows()
    drafter = make_drafter(alone)
    alone.add(drafter, 1, PROMPT, sampling=DRAWN)
    one = alone.step(drafter, {1: [9]}, num_wanted=NUM_DRAFTS, hidden_ED=hidden(target, [[9]], [8]))
    drafter = make_drafter(together)
    together.add(drafter, 2, PROMPT[::-1])
    together.add(drafter, 1, PROMPT, sampling=DRAWN)
    both = together.step(
        drafter,
        {2: [5, 6], 1: [9]},
        num_wanted=NUM_DRAFTS,
        hidden_ED=hidden(target, [[5, 6], [9]], [7, 8]),
    )
    assert one[1] == both[1]


def test_nothing_is_left_after_clear(make_drafter, target):
    """A new generation's requests, in the slots of the old ones, are proposed as if they were first."""
    rows = DraftedRows()
    drafter = make_drafter(rows)
    given = {"num_wanted": NUM_DRAFTS, "hidden_ED": hidden(target, [[9]], [8])}
    rows.add(drafter, 1, PROMPT, sampling=DRAWN)
    first = rows.step(drafter, {1: [9]}, **given)
    rows.add(drafter, 2, PROMPT[::-1])
    rows.step(drafter, {2: [9]}, **given)
    for handle in (1, 2):
        rows.remove(handle)
    drafter.clear()
    rows.add(drafter, 3, PROMPT, sampling=DRAWN)
    assert rows.step(drafter, {3: [9]}, **given)[3] == first[1]


@pytest.mark.parametrize("most_tokens", [3, 16])
def test_a_head_built_to_agree_is_right(folder, target, most_tokens):
    """It gets the hidden states of the accepted positions: nine of ten of its drafts stand, and more."""
    heads: list[HeadDrafter] = []

    def select(*_: object, **__: object) -> HeadDrafter:
        heads.append(HeadDrafter(target))
        return heads[-1]

    runner = make_runner(
        folder,
        speculation=SpeculationConfig(speculative_method=NGRAM, num_speculative_tokens=NUM_DRAFTS),
        select=select,
    )
    driver = StepDriver([runner], num_drafts=NUM_DRAFTS)
    plain = StepDriver([make_runner(folder)])
    for handle, prompt in enumerate((PROMPT, [1, 2], list(range(100, 130)))):
        driver.add(handle, prompt)
        plain.add(handle, prompt)
    driver.run_all(30, most_tokens=most_tokens)
    plain.run_all(40, most_tokens=most_tokens)
    for handle in range(3):
        assert driver.generated(handle) == plain.generated(handle)[: len(driver.generated(handle))]
    assert driver.num_accepted_tokens >= 0.9 * driver.num_draft_tokens > 60
    assert heads[0].num_tokens_followed >= 40


def test_a_head_that_is_given_another_position_is_wrong(target):
    """The head above is no oracle: what it proposes follows from the hidden state it is given."""
    head = HeadDrafter(target)
    rows = DraftedRows()
    rows.add(head, 1, PROMPT)
    right = rows.step(head, {1: [9]}, num_wanted=2, hidden_ED=hidden(target, [[9]], [8]))
    rows.add(head, 2, PROMPT)
    wrong = rows.step(head, {2: [9]}, num_wanted=2, hidden_ED=hidden(target, [[9]], [200]))
    assert right[1] != wrong[2]


def test_a_runner_counts_and_forgets_its_draft_model(folder):
    """Loaded, profiled, warmed up and forgotten like the target, and counted beside it."""
    speculation = SpeculationConfig(
        speculative_method=DRAFT_MODEL, num_speculative_tokens=NUM_DRAFTS, draft_model=str(folder)
    )
    plain = make_runner(folder, num_blocks=None)
    runner = make_runner(folder, num_blocks=None, speculation=speculation)
    budget = MemoryBudget(kv_cache_bytes=1 << 20)
    spare_bytes = (
        plain.profile_run(budget).kv_cache_bytes - runner.profile_run(budget).kv_cache_bytes
    )
    per_block = plain.kv_cache_spec().bytes_per_block
    # Four rows with a block of four each for as many drafts.
    assert spare_bytes == 4 * per_block
    assert runner.kv_cache_spec().bytes_per_block == 2 * per_block
    assert [group.kind for group in runner.kv_cache_spec().groups] == ["full", "draft"]
    assert runner.initialize_kv_cache(30) == 60 * per_block + spare_bytes
    runner.warm_up()
    texts = []
    for _ in range(2):
        driver = StepDriver([runner], num_drafts=NUM_DRAFTS, num_blocks=30)
        driver.add(1, PROMPT)
        driver.run_all(20, most_tokens=16)
        texts.append(driver.generated(1))
        assert driver.num_accepted_tokens == driver.num_draft_tokens > 10
        runner.forget_requests()
    assert texts[0] == texts[1]


def test_earlier_stages_hold_no_draft_model(folder):
    """Only the last of several stages loads it."""
    speculation = SpeculationConfig(speculative_method=DRAFT_MODEL, draft_model=str(folder))
    sizes = [
        len(
            make_runner(folder, num_blocks=None, stage=stage, num_stages=2, speculation=speculation)
            .kv_cache_spec()
            .groups
        )
        for stage in (0, 1)
    ]
    assert sizes == [1, 2]
