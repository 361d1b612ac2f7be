"""A step that breaks a rule is refused whole and leaves the state as it was."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import InvalidStep
from common.requests import SamplingParams
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId
from tests.fakes.step_driver import GREEDY, StepDriver, make_runner
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.runner.model_runner import ModelRunner

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """A runner that knows handle 1 (3 tokens computed, 1 block) and handle 2 (5 of 7, 2 blocks).

    Blocks have 4 slots, there are 16; a step has at most 16 tokens and 3 rows, a sequence 12 tokens.
    """
    runner = make_runner(
        write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=1),
        num_layers=1,
        num_blocks=16,
        max_model_len=12,
        max_num_batched_tokens=16,
        max_num_seqs=3,
    )
    driver = StepDriver([runner], num_blocks=16)
    driver.add(1, [5, 6, 7])
    driver.add(2, [10, 11, 12, 13, 14, 15, 16])
    driver.run({1: 3, 2: 5})
    return runner


@dataclass(frozen=True, kw_only=True)
class Cached:
    """One cached row; the default is legal for handle 2."""

    handle: int = 2
    computed: int = 5
    blocks: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    scheduled: int = 2
    source: int = 0


def fed(**changes: object) -> Cached:
    """A row of handle 1 with the token that it sampled in step 1, or a changed one."""
    row = Cached(handle=1, computed=3, blocks=(3,), scheduled=1, source=1)
    return dataclasses.replace(row, **changes)


@dataclass(frozen=True, kw_only=True)
class New:
    """One new row; the default is legal for an unknown handle."""

    handle: int = 9
    tokens: tuple[int, ...] = (1, 2, 3, 4, 5)
    prompt: int = 5
    blocks: tuple[int, ...] = (14, 15)
    computed: int = 0
    scheduled: int = 5
    sampling: SamplingParams = GREEDY
    num_groups: int = 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as a test writes it."""

    new: tuple[New, ...] = ()
    cached: tuple[Cached, ...] = ()
    finished: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    edit: Callable[[SchedulerOutput], SchedulerOutput] = field(default=lambda output: output)

    def output(self) -> SchedulerOutput:
        """The step as the worker gets it."""
        return self.edit(
            SchedulerOutput(
                step_id=StepId(epoch=1, generation=1, step=2),
                base_step=1,
                new_requests=tuple(new_request(row) for row in self.new),
                cached_requests=cached_requests(self.cached),
                num_scheduled_tokens=np.array(
                    [row.scheduled for row in (*self.new, *self.cached)], dtype=np.int32
                ),
                finished_handles=np.array(self.finished, dtype=np.uint64),
                preempted_handles=np.array(self.preempted, dtype=np.uint64),
            )
        )


def new_request(row: New) -> NewRequest:
    """The record of a new row."""
    return NewRequest(
        handle=row.handle,
        token_ids=np.array(row.tokens, dtype=np.int32),
        num_prompt_tokens=row.prompt,
        sampling=row.sampling,
        block_ids=(np.array(row.blocks, dtype=np.int32),) * row.num_groups,
        num_computed_tokens=row.computed,
    )


def cached_requests(rows: tuple[Cached, ...]) -> CachedRequests:
    """The columns of cached rows."""
    return CachedRequests(
        handles=np.array([row.handle for row in rows], dtype=np.uint64),
        num_computed_tokens=np.array([row.computed for row in rows], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([row.blocks for row in rows]),),
        new_token_ids=Ragged.from_rows([row.tokens for row in rows]),
        token_source_steps=np.array([row.source for row in rows], dtype=np.uint64),
    )


def sampling(**changes: object) -> New:
    """A new row with changed sampling parameters."""
    return New(sampling=dataclasses.replace(SamplingParams(), **changes))


def without_column(name: str) -> Callable[[SchedulerOutput], SchedulerOutput]:
    """An edit that drops the last row of a column of the cached requests."""

    def edit(output: SchedulerOutput) -> SchedulerOutput:
        cached = output.cached_requests
        empty = {
            "num_computed_tokens": cached.num_computed_tokens[:-1],
            "new_block_ids": (Ragged.from_rows([]),),
            "new_token_ids": Ragged.from_rows([]),
            "token_source_steps": cached.token_source_steps[:-1],
        }
        changed = dataclasses.replace(cached, **{name: empty[name]})
        return dataclasses.replace(output, cached_requests=changed)

    return edit


def two_cached_groups(output: SchedulerOutput) -> SchedulerOutput:
    """An edit that gives the cached requests a second KV cache group."""
    cached = output.cached_requests
    groups = cached.new_block_ids * 2
    return dataclasses.replace(
        output, cached_requests=dataclasses.replace(cached, new_block_ids=groups)
    )


def one_row_less(output: SchedulerOutput) -> SchedulerOutput:
    """An edit that drops the last count of scheduled tokens."""
    return dataclasses.replace(output, num_scheduled_tokens=output.num_scheduled_tokens[:-1])


LONG = tuple(range(13))

BROKEN = {
    "unknown cached handle": (Step(cached=(Cached(handle=7),)), "row 0 .handle 7.: handle"),
    "new handle is known": (Step(new=(New(handle=1),)), "row 0 .handle 1.: handle"),
    "handle with two cached rows": (Step(cached=(Cached(), Cached())), "handle 2"),
    "handle with two new rows": (Step(new=(New(), New())), "handle 9"),
    "cached row of a finished handle": (Step(cached=(Cached(),), finished=(2,)), "row 0"),
    "finished handle is unknown": (Step(finished=(7,)), "handle 7"),
    "preempted handle is unknown": (Step(preempted=(7,)), "handle 7"),
    "finished and preempted": (Step(finished=(1,), preempted=(1,)), "handle 1"),
    "new block past the cache": (Step(new=(New(blocks=(3, 16)),)), "row 0 .*block_ids .*16"),
    "new block below 0": (Step(new=(New(blocks=(3, -1)),)), "row 0 .*block_ids"),
    "added block past the cache": (
        Step(new=(New(),), cached=(Cached(blocks=(16,)),)),
        "row 1 .handle 2.: new_block_ids",
    ),
    "too few blocks for a new row": (Step(new=(New(blocks=(3,)),)), "row 0 .*block_ids"),
    "too few blocks for a cached row": (
        Step(cached=(Cached(tokens=(1, 2), scheduled=4),)),
        "row 0 .*block_ids",
    ),
    "more blocks than a sequence has": (Step(new=(New(blocks=(3, 4, 5, 6)),)), "block_ids"),
    "computed count is not the tracked one": (
        Step(cached=(Cached(computed=4),)),
        "row 0 .*num_computed_tokens is 4",
    ),
    "new row computed below 0": (Step(new=(New(computed=-1),)), "num_computed_tokens"),
    "new row wholly computed": (Step(new=(New(computed=5, scheduled=1),)), "num_computed_tokens"),
    "nothing to compute": (Step(cached=(Cached(scheduled=0),)), "row 0 .*num_scheduled_tokens"),
    "more than is known": (Step(cached=(Cached(scheduled=3),)), "row 0 .*num_scheduled_tokens"),
    "more than a new row has": (Step(new=(New(scheduled=6),)), "row 0 .*num_scheduled_tokens"),
    "too many tokens in all": (
        Step(new=(New(tokens=LONG[:12], blocks=(3, 4, 5), scheduled=12), New(handle=8))),
        "max_num_batched_tokens",
    ),
    "too many rows": (Step(new=tuple(New(handle=20 + i, scheduled=1) for i in range(4))), "rows"),
    "new row is too long": (
        Step(new=(New(tokens=LONG, blocks=(3, 4, 5), scheduled=12),)),
        "row 0 .*max_model_len",
    ),
    "cached row grows too long": (Step(cached=(Cached(tokens=LONG[:6]),)), "row 0 .*max_model_len"),
    "prompt token past the vocabulary": (Step(new=(New(tokens=(1, 260), prompt=2),)), "token_ids"),
    "prompt token below 0": (Step(new=(New(tokens=(-1, 1), prompt=2),)), "token_ids"),
    "added token past the vocabulary": (
        Step(
            cached=(
                Cached(handle=1, computed=3, tokens=(3,), blocks=(3,), scheduled=1),
                Cached(tokens=(260,)),
            )
        ),
        "row 1 .handle 2.: new_token_ids",
    ),
    "no prompt": (Step(new=(New(prompt=0),)), "num_prompt_tokens"),
    "prompt longer than the tokens": (Step(new=(New(prompt=6),)), "num_prompt_tokens"),
    "temperature below 0": (Step(new=(sampling(temperature=-0.1),)), "row 0 .*temperature"),
    "temperature without end": (Step(new=(sampling(temperature=math.inf),)), "temperature"),
    "temperature is not a number": (Step(new=(sampling(temperature=math.nan),)), "temperature"),
    "top_k below 0": (Step(new=(sampling(top_k=-1),)), "top_k"),
    "top_p of 0": (Step(new=(sampling(top_p=0.0),)), "top_p"),
    "top_p past 1": (Step(new=(sampling(top_p=1.5),)), "top_p"),
    "min_p past 1": (Step(new=(sampling(min_p=1.5),)), "min_p"),
    "seed of 65 bits": (Step(new=(sampling(seed=1 << 64),)), "seed"),
    "more log-probabilities than tokens": (Step(new=(sampling(num_logprobs=261),)), "num_logprobs"),
    "more of the prompt's": (Step(new=(sampling(num_prompt_logprobs=261),)), "num_prompt_logprobs"),
    "penalty of 0": (Step(new=(sampling(repetition_penalty=0.0),)), "repetition_penalty"),
    "penalty without end": (Step(new=(sampling(frequency_penalty=math.inf),)), "frequency_penalty"),
    "penalty is not a number": (Step(new=(sampling(presence_penalty=math.nan),)), "presence_penal"),
    "end outside": (Step(new=(sampling(min_tokens=1, end_token_ids=(260,)),)), "end_token_ids"),
    "bias of a token outside": (Step(new=(sampling(logit_bias=((260, 1.0),)),)), "logit_bias"),
    "two biases": (Step(new=(sampling(logit_bias=((1, 1.0), (1, 2.0))),)), "logit_bias"),
    "bias without end": (Step(new=(sampling(logit_bias=((1, math.inf),)),)), "logit_bias"),
    "allowed outside": (Step(new=(sampling(allowed_token_ids=(-1,)),)), "allowed_token_ids"),
    "bad word outside": (Step(new=(sampling(bad_words=((1, 260),)),)), "bad_words"),
    "two groups in a new row": (Step(new=(New(num_groups=2),)), "row 0 .*groups"),
    "two groups in the columns": (Step(cached=(Cached(),), edit=two_cached_groups), "groups"),
    "a count too few": (Step(cached=(Cached(),), edit=one_row_less), "num_scheduled_tokens"),
    "token of a request that has sampled nothing": (
        Step(cached=(Cached(source=1),)),
        "row 0 .handle 2.: token_source_steps is 1 .*in step 0",
    ),
    "token of a step that did not sample it": (
        Step(cached=(Cached(), fed(source=2))),
        "row 1 .handle 1.: token_source_steps is 2 .*in step 1",
    ),
    "token both fed and sent": (
        Step(cached=(fed(tokens=(3,)),)),
        "row 0 .handle 1.: token_source_steps is 1 with 1 new_token_ids",
    ),
    "more than is known and fed": (
        Step(cached=(fed(scheduled=2),)),
        "row 0 .handle 1.: num_scheduled_tokens reaches token 5 of 4",
    ),
    **{
        f"column {name} too short": (Step(cached=(Cached(),), edit=without_column(name)), name)
        for name in ("num_computed_tokens", "new_block_ids", "new_token_ids", "token_source_steps")
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_is_refused_and_changes_nothing(runner, name):
    """The error names row and field; the digest of the worker's state stays."""
    step, complaint = BROKEN[name]
    before = runner.digests()
    with pytest.raises(InvalidStep, match=complaint):
        runner.validate(step.output())
    assert runner.digests() == before


LEGAL = {
    "a cached row": Step(cached=(Cached(),)),
    "a token fed from the step that sampled it": Step(cached=(Cached(), fed())),
    "a cached row with a token and a block": Step(
        cached=(Cached(tokens=(1, 2), blocks=(3,), scheduled=4),)
    ),
    "a new row in part": Step(new=(New(scheduled=2),)),
    "a handle dropped and back": Step(new=(New(handle=2),), preempted=(2,)),
    "the null block twice": Step(new=(New(blocks=(0, 0)),)),
    "a prefix that is computed": Step(new=(New(computed=4, scheduled=1),)),
    "the longest sequence": Step(new=(New(tokens=LONG[:12], blocks=(3, 4, 5), scheduled=12),)),
    "the fullest step": Step(
        new=(New(tokens=LONG[:12], blocks=(3, 4, 5), scheduled=12), New(handle=8, scheduled=2)),
        cached=(Cached(),),
    ),
    "only drops": Step(finished=(1,), preempted=(2,)),
    "every sampling value at its limit": Step(
        new=(
            sampling(
                temperature=1e30,
                top_k=1 << 30,
                top_p=1.0,
                min_p=1.0,
                seed=(1 << 64) - 1,
                num_logprobs=260,
            ),
        )
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_step_passes_and_changes_nothing(runner, name):
    """Checking alone does not apply a step."""
    before = runner.digests()
    runner.validate(LEGAL[name].output())
    assert runner.digests() == before


def test_without_a_cache_no_block_exists(tmp_path: Path):
    """Before the cache is allocated even the null block is refused."""
    runner = make_runner(write_tiny_llama(tmp_path, num_layers=1), num_layers=1, num_blocks=None)
    with pytest.raises(InvalidStep, match="block_ids"):
        runner.validate(Step(new=(New(blocks=(0, 0)),)).output())
