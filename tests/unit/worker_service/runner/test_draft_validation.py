"""Steps with draft tokens that contradict a worker's state are refused whole."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import InvalidStep
from common.speculation import NGRAM, SpeculationConfig
from common.step import CachedRequests, Ragged, SchedulerOutput, StepId
from tests.fakes.step_driver import NoInputs, StepDriver, make_runner
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.runner.model_runner import ModelRunner

torch.set_num_threads(1)

MOST_DRAFTS = 3


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    """A runner that knows handle 1: 3 tokens computed in block 4, one sampled in step 1."""
    runner = make_runner(
        write_tiny_llama(tmp_path, num_layers=1),
        num_layers=1,
        num_blocks=16,
        max_model_len=12,
        speculation=SpeculationConfig(speculative_method=NGRAM, num_speculative_tokens=MOST_DRAFTS),
    )
    driver = StepDriver([runner], num_blocks=16)
    driver.add(1, [5, 6, 7])
    driver.run({1: 3})
    return runner


def step(
    *,
    number: int = 2,
    computed: int = 3,
    tokens: tuple[int, ...] = (9,),
    drafts: tuple[int, ...] = (1, 2),
    blocks: tuple[int, ...] = (2, 3),
    scheduled: int = 3,
    source: int = 0,
    wanted: tuple[int, ...] = (),
) -> SchedulerOutput:
    """A row of handle 1 with the token it sampled and two drafts, or a changed one."""
    return SchedulerOutput(
        step_id=StepId(epoch=1, generation=1, step=number),
        base_step=number - 1,
        cached_requests=CachedRequests(
            handles=np.array([1], dtype=np.uint64),
            num_computed_tokens=np.array([computed], dtype=np.int32),
            new_block_ids=(Ragged.from_rows([blocks]),),
            new_token_ids=Ragged.from_rows([tokens]),
            token_source_steps=np.array([source], dtype=np.uint64),
            draft_token_ids=Ragged.from_rows([drafts]),
        ),
        num_scheduled_tokens=np.array([scheduled], dtype=np.int32),
        num_drafts_wanted=np.array(wanted, dtype=np.int32),
    )


BROKEN = {
    "a draft past the vocabulary": (step(drafts=(1, 260)), "draft_token_ids"),
    "more drafts than a row may have": (
        step(drafts=(1, 2, 3, 4), scheduled=5),
        "draft_token_ids has more than 3",
    ),
    "a draft that is not computed": (step(scheduled=2), "num_scheduled_tokens ends at token 5"),
    "more tokens than drafts": (step(scheduled=4), "reaches token 7 of 6"),
    "drafts beside a source": (step(tokens=(), source=1), "beside token_source_steps"),
    "too few blocks": (step(blocks=()), "block_ids are 1 blocks"),
    "a row of drafts too many": (
        dataclasses.replace(
            step(),
            cached_requests=dataclasses.replace(
                step().cached_requests, draft_token_ids=Ragged.from_rows([[1, 2], []])
            ),
        ),
        "draft_token_ids has 2 rows",
    ),
    "more drafts wanted than there may be": (step(wanted=(4,)), "num_drafts_wanted"),
    "less than none wanted": (step(wanted=(-1,)), "num_drafts_wanted"),
    "wanted of too many rows": (step(wanted=(1, 1)), "num_drafts_wanted has 2 rows"),
    "accepted drafts that nobody computed": (
        step(tokens=(9, 8), computed=4, drafts=(), scheduled=1),
        "num_computed_tokens is 4, this worker has 3",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_is_refused_and_changes_nothing(runner, name):
    """The error names the field; the digest of the worker's state stays."""
    output, complaint = BROKEN[name]
    before = runner.digests()
    with pytest.raises(InvalidStep, match=complaint):
        runner.validate(output)
    assert runner.digests() == before


def test_counts_go_on_from_what_was_accepted(runner):
    """Behind drafts a row claims what is right of them; a fed one claims as if all were."""
    sent = step(drafts=(1, 2), wanted=(3,))
    runner.validate(sent)
    runner.execute_model(sent, NoInputs())
    runner.sample_tokens(sent.step_id)
    follows = {"number": 3, "blocks": (), "drafts": (), "scheduled": 1}
    runner.validate(step(computed=4, tokens=(1,), **follows))
    runner.validate(step(computed=5, tokens=(1, 2), **follows))
    runner.validate(step(computed=6, tokens=(1, 2, 3), **follows))
    runner.validate(step(computed=6, tokens=(), source=2, **follows))
    for wrong in ({"computed": 5, "tokens": (1,)}, {"computed": 5, "tokens": (), "source": 2}):
        with pytest.raises(InvalidStep, match="num_computed_tokens is 5"):
            runner.validate(step(**follows, **wrong))
