"""Chosen sequences become a SchedulerOutput: only what the workers do not hold yet is written.

The planner is the one that knows what the workers hold. It does not choose sequences or blocks.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from common.requests import SamplingParams
from common.state_digest import state_digest
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId
from coordinator.kv.block_pool import NULL_BLOCK
from coordinator.scheduling.sequence import Sequence

WARM_UP_TOKEN = 0
WARM_UP_STEP = 1


class ScheduledRow(NamedTuple):
    """A sequence and how many of its tokens a step computes, at least 1."""

    sequence: Sequence
    num_tokens: int


class _Held:
    """How many tokens and blocks of one sequence the workers were sent."""

    __slots__ = ("num_blocks", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_blocks = 0


class StepPlanner:
    """Numbers the steps of a generation and writes each as the difference to the one before."""

    def __init__(self, *, check_state_every: int = 0) -> None:
        """Every so many steps one asks for the workers' digest of their state; 0: none does."""
        self._check_state_every = check_state_every
        self._epoch = 0
        self._generation = 0
        self._last_step = 0
        self._held: dict[int, _Held] = {}
        self._finished: list[int] = []
        self._preempted: list[int] = []

    @property
    def has_undelivered_drops(self) -> bool:
        """True while workers hold a request that is finished or preempted."""
        return bool(self._finished or self._preempted)

    def begin_generation(self, *, epoch: int, generation: int) -> None:
        """Start with workers that hold nothing; the first step is 1."""
        self._epoch = epoch
        self._generation = generation
        self._last_step = 0
        self._held.clear()
        self._finished.clear()
        self._preempted.clear()

    def drop_finished(self, handle: int) -> None:
        """Let the next step tell the workers that a sequence is finished, if they hold it."""
        if self._held.pop(handle, None) is not None:
            self._finished.append(handle)

    def drop_preempted(self, handle: int) -> None:
        """Let the next step tell the workers that a sequence is preempted, if they hold it."""
        if self._held.pop(handle, None) is not None:
            self._preempted.append(handle)

    def plan(self, rows: list[ScheduledRow]) -> SchedulerOutput:
        """Write a step with these rows, perhaps none, and every drop not yet delivered.

        Rows the workers do not hold come first. Computed counts are read as they are before the step.
        """
        new: list[ScheduledRow] = []
        cached: list[ScheduledRow] = []
        for row in rows:
            (cached if row.sequence.handle in self._held else new).append(row)
        return self._next_output(
            new_requests=tuple(self._new_request(row.sequence) for row in new),
            cached_requests=self._cached_requests([row.sequence for row in cached]),
            counts=[row.num_tokens for row in (*new, *cached)],
        )

    def plan_warm_up(self, handle: int) -> SchedulerOutput:
        """Write a step of one token in the null block, whose request the next step finishes."""
        request = NewRequest(
            handle=handle,
            token_ids=np.array([WARM_UP_TOKEN], dtype=np.int32),
            num_prompt_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            block_ids=(np.array([NULL_BLOCK], dtype=np.int32),),
            num_computed_tokens=0,
        )
        output = self._next_output(
            new_requests=(request,), cached_requests=CachedRequests.none(), counts=[1]
        )
        self._finished.append(handle)
        return output

    def state_digest(self, sequences: Iterable[Sequence]) -> bytes:
        """Digest of what the workers hold of these sequences once they have run every step so far."""
        return state_digest(
            (
                sequence.handle,
                (sequence.blocks.table[: held.num_blocks],),
                sequence.num_computed_tokens,
            )
            for sequence in sequences
            if (held := self._held.get(sequence.handle)) is not None
        )

    def _next_output(
        self,
        *,
        new_requests: tuple[NewRequest, ...],
        cached_requests: CachedRequests,
        counts: list[int],
    ) -> SchedulerOutput:
        base_step = self._last_step
        self._last_step += 1
        output = SchedulerOutput(
            step_id=StepId(epoch=self._epoch, generation=self._generation, step=self._last_step),
            base_step=base_step,
            new_requests=new_requests,
            cached_requests=cached_requests,
            num_scheduled_tokens=np.array(counts, dtype=np.int32),
            finished_handles=np.array(self._finished, dtype=np.uint64),
            preempted_handles=np.array(self._preempted, dtype=np.uint64),
            want_state_digest=self._is_state_check(self._last_step),
        )
        self._finished.clear()
        self._preempted.clear()
        return output

    def _is_state_check(self, step: int) -> bool:
        # The request of the warm-up step is the workers' alone.
        every = self._check_state_every
        return every > 0 and step % every == 0 and step > WARM_UP_STEP

    def _new_request(self, sequence: Sequence) -> NewRequest:
        held = self._held[sequence.handle] = _Held()
        held.num_tokens = sequence.num_tokens
        held.num_blocks = len(sequence.blocks.table)
        return NewRequest(
            handle=sequence.handle,
            token_ids=np.array(sequence.token_ids, dtype=np.int32),
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampling=sequence.request.sampling,
            block_ids=(np.array(sequence.blocks.table, dtype=np.int32),),
            num_computed_tokens=sequence.num_computed_tokens,
        )

    def _cached_requests(self, sequences: list[Sequence]) -> CachedRequests:
        token_ids: list[int] = []
        block_ids: list[int] = []
        token_ends = [0]
        block_ends = [0]
        for sequence in sequences:
            held = self._held[sequence.handle]
            num_tokens, num_blocks = len(sequence.token_ids), len(sequence.blocks.table)
            if held.num_tokens < num_tokens:
                token_ids.extend(sequence.token_ids[held.num_tokens :])
                held.num_tokens = num_tokens
            if held.num_blocks < num_blocks:
                block_ids.extend(sequence.blocks.table[held.num_blocks :])
                held.num_blocks = num_blocks
            token_ends.append(len(token_ids))
            block_ends.append(len(block_ids))
        return CachedRequests(
            handles=np.array([sequence.handle for sequence in sequences], dtype=np.uint64),
            num_computed_tokens=np.array(
                [sequence.num_computed_tokens for sequence in sequences], dtype=np.int32
            ),
            new_block_ids=(_ragged(block_ids, block_ends),),
            new_token_ids=_ragged(token_ids, token_ends),
            token_source_steps=np.zeros(len(sequences), dtype=np.uint64),
        )


def _ragged(values: list[int], offsets: list[int]) -> Ragged:
    return Ragged(np.array(values, dtype=np.int32), np.array(offsets, dtype=np.uint32))
