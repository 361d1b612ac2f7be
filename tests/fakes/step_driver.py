"""Plays the coordinator of one replica step by step: the test says which request computes how much.

It keeps the tokens and blocks of each sequence, sends differences, feeds stage i's tensors to stage
i + 1, and appends what the last stage sampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.requests import SamplingParams
from common.speculation import SpeculationConfig
from common.step import (
    CachedRequests,
    ModelRunnerOutput,
    NewRequest,
    Ragged,
    SchedulerOutput,
    StepId,
)
from tests.fakes.worker_setup import load_request
from worker_service.batch.sampled_tokens import SampledTokens
from worker_service.drafting.select import DrafterSelect, select_drafter
from worker_service.runner.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0)


class NoInputs:
    """The inputs of a first stage that needs none."""

    def receive(self) -> dict[str, Tensor]:
        """Fail: a first stage embeds its tokens."""
        raise AssertionError("a first stage receives nothing")

    def receive_tokens(self, step: int) -> SampledTokens:
        """Fail: only the first of several stages is fed."""
        raise AssertionError("no tokens are fed back here")


class FedTokens(NoInputs):
    """What the last stage has sampled in each step."""

    def __init__(self) -> None:
        self.by_step: dict[int, SampledTokens] = {}

    def receive_tokens(self, step: int) -> SampledTokens:
        """Hand a step's tokens over, once."""
        return self.by_step.pop(step)


class GivenInputs(NoInputs):
    """Tensors that are there already."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def receive(self) -> dict[str, Tensor]:
        """Hand them over."""
        return self._tensors


def make_runner(
    folder: Path,
    *,
    num_blocks: int | None = 64,
    speculation: SpeculationConfig | None = None,
    select: DrafterSelect = select_drafter,
    options: Mapping[str, Any] | None = None,
    **request: int,
) -> ModelRunner:
    """A loaded runner on the CPU; num_blocks None leaves it without a KV cache. options: of ModelRunner."""
    runner = ModelRunner(
        device=torch.device("cpu"),
        folder=folder,
        request=replace(
            load_request("tiny", **request), speculation=speculation or SpeculationConfig()
        ),
        select=select,
        **options or {},
    )
    runner.load_model()
    if num_blocks is not None:
        runner.initialize_kv_cache(num_blocks)
    return runner


@dataclass(slots=True, kw_only=True)
class DrivenSequence:
    """One sequence as the coordinator sees it, and how much of it the workers were told."""

    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    num_told_tokens: int = 0
    is_known: bool = False
    last_step: int = 0


class StepDriver:
    """Runs steps over the stages of one replica; the test may look at runners and sequences.

    is_feeding: a row names the step that sampled its token instead of the token. num_drafts: drafts
    wanted of each row; a row that computes all its tokens computes the drafts behind them, too.
    num_draft_tokens and num_accepted_tokens count them.
    """

    def __init__(
        self,
        runners: Sequence[ModelRunner],
        *,
        block_size: int = 4,
        num_blocks: int = 64,
        is_feeding: bool = False,
        num_drafts: int = 0,
    ) -> None:
        self.runners = runners
        self._num_drafts = num_drafts
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._is_feeding = is_feeding
        self._fed = FedTokens()
        self._block_size = block_size
        # Taken from the end, so that block tables are neither sorted nor contiguous.
        self._free_blocks = [*range(2, num_blocks, 2), *range(1, num_blocks, 2)]
        self._step = 0
        self._finished: list[int] = []
        self._preempted: list[int] = []
        self.sequences: dict[int, DrivenSequence] = {}

    def add(self, handle: int, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> None:
        """Accept a request."""
        self.sequences[handle] = DrivenSequence(
            tokens=list(prompt), num_prompt_tokens=len(prompt), sampling=sampling
        )

    def finish(self, handle: int) -> None:
        """End a request; the workers learn of it with the next step."""
        self._free(self.sequences.pop(handle))
        self._finished.append(handle)

    def preempt(self, handle: int) -> None:
        """Take a request's blocks; the next step that schedules it readmits it in full."""
        sequence = self.sequences[handle]
        self._free(sequence)
        sequence.num_computed, sequence.is_known, sequence.drafts = 0, False, []
        self._preempted.append(handle)

    def plan(
        self, num_tokens: Mapping[int, int], *, want_state_digest: bool = False
    ) -> SchedulerOutput:
        """The next step: so many tokens of each handle; new requests come first."""
        new = [handle for handle in num_tokens if not self.sequences[handle].is_known]
        cached = [handle for handle in num_tokens if self.sequences[handle].is_known]
        for handle, count in num_tokens.items():
            sequence = self.sequences[handle]
            if sequence.num_computed + count < len(sequence.tokens):
                sequence.drafts = []
        counts = {
            handle: num_tokens[handle] + len(self.sequences[handle].drafts) for handle in num_tokens
        }
        self._step += 1
        output = SchedulerOutput(
            step_id=StepId(epoch=1, generation=1, step=self._step),
            base_step=self._step - 1,
            new_requests=tuple(self._new_request(handle, num_tokens[handle]) for handle in new),
            cached_requests=self._cached_requests(cached, counts),
            num_scheduled_tokens=np.array([counts[h] for h in new + cached], dtype=np.int32),
            num_drafts_wanted=np.full(
                len(num_tokens) if self._num_drafts else 0, self._num_drafts, dtype=np.int32
            ),
            finished_handles=np.array(self._finished, dtype=np.uint64),
            preempted_handles=np.array(self._preempted, dtype=np.uint64),
            want_state_digest=want_state_digest,
        )
        self._finished, self._preempted = [], []
        for handle in num_tokens:
            self.sequences[handle].num_computed += num_tokens[handle]
            self.sequences[handle].last_step = self._step
        return output

    def run(
        self, num_tokens: Mapping[int, int], *, want_state_digest: bool = False
    ) -> ModelRunnerOutput:
        """Plan a step, run it through all stages and append what was sampled."""
        output = self.plan(num_tokens, want_state_digest=want_state_digest)
        result = self.execute(output)
        for index, handle in enumerate(result.handles.tolist()):
            sequence, emitted = self.sequences[handle], result.sampled_token_ids.row(index).tolist()
            self.num_draft_tokens += len(sequence.drafts)
            self.num_accepted_tokens += len(emitted) - 1
            sequence.tokens.extend(emitted)
            sequence.num_computed = len(sequence.tokens) - 1
            sequence.drafts = [] if result.drafts is None else result.drafts.row(index).tolist()
        return result

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step through all stages."""
        inputs: NoInputs = self._fed if len(self.runners) > 1 else NoInputs()
        for runner in self.runners:
            runner.validate(output)
            result = runner.execute_model(output, inputs)
            if isinstance(result, dict):
                inputs = GivenInputs(result)
        if isinstance(result, ModelRunnerOutput):
            return result
        assert result is None, "the last stage keeps its hidden states"
        sampled = self.runners[-1].sample_tokens(output.step_id)
        self._fed.by_step[output.step_id.step] = self.runners[-1].last_sampled
        return sampled

    def run_all(self, num_new_tokens: int, *, most_tokens: int) -> None:
        """Step over all sequences, at most so many tokens each, until each has that many new ones."""
        while pending := {
            handle: min(most_tokens, len(sequence.tokens) - sequence.num_computed)
            for handle, sequence in self.sequences.items()
            if len(sequence.tokens) < sequence.num_prompt_tokens + num_new_tokens
        }:
            self.run(pending)

    def generated(self, handle: int) -> list[int]:
        """Tokens sampled for a request."""
        sequence = self.sequences[handle]
        return sequence.tokens[sequence.num_prompt_tokens :]

    def _new_request(self, handle: int, num_tokens: int) -> NewRequest:
        sequence = self.sequences[handle]
        self._reserve(sequence, num_tokens)
        sequence.is_known, sequence.num_told_tokens = True, len(sequence.tokens)
        return NewRequest(
            handle=handle,
            token_ids=np.array(sequence.tokens, dtype=np.int32),
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampling=sequence.sampling,
            block_ids=(np.array(sequence.blocks, dtype=np.int32),),
            num_computed_tokens=sequence.num_computed,
        )

    def _cached_requests(self, handles: list[int], num_tokens: Mapping[int, int]) -> CachedRequests:
        sequences = [self.sequences[handle] for handle in handles]
        computed = np.array([sequence.num_computed for sequence in sequences], dtype=np.int32)
        new_blocks = [
            self._reserve(sequence, num_tokens[handle])
            for handle, sequence in zip(handles, sequences, strict=True)
        ]
        new_tokens = [sequence.tokens[sequence.num_told_tokens :] for sequence in sequences]
        sources = [
            sequence.last_step if self._is_feeding and tokens else 0
            for sequence, tokens in zip(sequences, new_tokens, strict=True)
        ]
        for sequence in sequences:
            sequence.num_told_tokens = len(sequence.tokens)
        return CachedRequests(
            handles=np.array(handles, dtype=np.uint64),
            num_computed_tokens=computed,
            new_block_ids=(Ragged.from_rows(new_blocks),),
            new_token_ids=Ragged.from_rows(
                [[] if source else row for row, source in zip(new_tokens, sources, strict=True)]
            ),
            token_source_steps=np.array(sources, dtype=np.uint64),
            draft_token_ids=(
                Ragged.from_rows([sequence.drafts for sequence in sequences])
                if self._num_drafts
                else None
            ),
        )

    def _reserve(self, sequence: DrivenSequence, num_tokens: int) -> list[int]:
        """Give a sequence the blocks its next tokens need and return those that are new."""
        needed = -(-(sequence.num_computed + num_tokens) // self._block_size)
        new = [self._free_blocks.pop() for _ in range(needed - len(sequence.blocks))]
        sequence.blocks.extend(new)
        return new

    def _free(self, sequence: DrivenSequence) -> None:
        self._free_blocks.extend(sequence.blocks)
        sequence.blocks = []
