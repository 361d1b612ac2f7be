"""Chosen sequences become a SchedulerOutput: only what the workers do not hold yet is written.

The planner is the one that knows what the workers hold. It does not choose sequences or blocks.
"""

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.requests import SamplingParams
from common.state_digest import state_digest
from common.step import CachedRequests, NewRequest, Ragged, SchedulerOutput, StepId
from coordinator.kv.block_pool import NULL_BLOCK
from coordinator.scheduling.sequence import Sequence

WARM_UP_TOKEN = 0
WARM_UP_STEP = 1


class ScheduledRows:
    """Sequences of a step, how many tokens it computes of each, at least 1, and how many are drafts."""

    __slots__ = ("num_drafts", "num_tokens", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.num_tokens: list[int] = []
        self.num_drafts: list[int] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self.sequences)

    @property
    def has_constrained(self) -> bool:
        """Whether one samples whose output has a grammar; counts are read as before the step."""
        return any(
            sequence.matcher is not None
            and sequence.num_computed_tokens + num_tokens - num_drafts
            == sequence.num_tokens + sequence.num_placeholders
            for sequence, num_tokens, num_drafts in zip(
                self.sequences, self.num_tokens, self.num_drafts, strict=True
            )
        )

    def append(self, sequence: Sequence, num_tokens: int, num_drafts: int = 0) -> None:
        """Add one; the drafts are among its tokens."""
        self.sequences.append(sequence)
        self.num_tokens.append(num_tokens)
        self.num_drafts.append(num_drafts)


class StepPlanner:
    """Numbers the steps of a generation and writes each as the difference to the one before."""

    def __init__(
        self, *, check_state_every: int = 0, has_drafts: bool = False, num_tables: int = 1
    ) -> None:
        """Every so many steps one asks for the workers' digest of their state; 0: none does.

        has_drafts: workers propose draft tokens. num_tables: block tables of a sequence.
        """
        self._num_tables = num_tables
        self._check_state_every = check_state_every
        self._has_drafts = has_drafts
        self._epoch = 0
        self._generation = 0
        self._last_step = 0
        self._held: set[int] = set()
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
        if handle in self._held:
            self._held.remove(handle)
            self._finished.append(handle)

    def drop_preempted(self, handle: int) -> None:
        """Let the next step tell the workers that a sequence is preempted, if they hold it."""
        if handle in self._held:
            self._held.remove(handle)
            self._preempted.append(handle)

    def plan(
        self, *, new: ScheduledRows, cached: ScheduledRows, grammar_mask_follows: bool = False
    ) -> SchedulerOutput:
        """Write a step with these rows, perhaps none, and every drop not yet delivered.

        new: those the workers do not hold. Computed counts are read as they are before the step.
        """
        return self._next_output(
            new_requests=tuple(map(self._new_request, new.sequences)),
            cached_requests=self._cached_requests(cached),
            counts=new.num_tokens + cached.num_tokens,
            wanted=(
                [_want_drafts(sequence) for sequence in new.sequences + cached.sequences]
                if self._has_drafts
                else []
            ),
            grammar_mask_follows=grammar_mask_follows,
        )

    def plan_without_rows(self) -> SchedulerOutput:
        """Write a step that only delivers drops."""
        return self.plan(new=ScheduledRows(), cached=ScheduledRows())

    def plan_warm_up(self, handle: int) -> SchedulerOutput:
        """Write a step of one token in the null block, whose request the next step finishes."""
        request = NewRequest(
            handle=handle,
            token_ids=np.array([WARM_UP_TOKEN], dtype=np.int32),
            num_prompt_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            block_ids=(np.array([NULL_BLOCK], dtype=np.int32),) * self._num_tables,
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
                _sent_blocks(sequence),
                sequence.num_planned_tokens,
            )
            for sequence in sequences
            if sequence.handle in self._held
        )

    def _next_output(
        self,
        *,
        new_requests: tuple[NewRequest, ...],
        cached_requests: CachedRequests,
        counts: list[int],
        wanted: list[int] | None = None,
        grammar_mask_follows: bool = False,
    ) -> SchedulerOutput:
        base_step = self._last_step
        self._last_step += 1
        output = SchedulerOutput(
            step_id=StepId(epoch=self._epoch, generation=self._generation, step=self._last_step),
            base_step=base_step,
            new_requests=new_requests,
            cached_requests=cached_requests,
            num_scheduled_tokens=_column(array("i", counts), np.int32),
            finished_handles=np.array(self._finished, dtype=np.uint64),
            preempted_handles=np.array(self._preempted, dtype=np.uint64),
            grammar_mask_follows=grammar_mask_follows,
            want_state_digest=self._is_state_check(self._last_step),
            num_drafts_wanted=_column(array("i", wanted or []), np.int32),
        )
        self._finished.clear()
        self._preempted.clear()
        return output

    def _is_state_check(self, step: int) -> bool:
        # The request of the warm-up step is the workers' alone.
        every = self._check_state_every
        return every > 0 and step % every == 0 and step > WARM_UP_STEP

    def _new_request(self, sequence: Sequence) -> NewRequest:
        self._held.add(sequence.handle)
        sequence.num_sent_tokens = sequence.num_tokens
        tables = sequence.blocks.tables
        sequence.num_sent_blocks, *sequence.num_sent_more = map(len, tables)
        return NewRequest(
            handle=sequence.handle,
            token_ids=np.array(sequence.token_ids, dtype=np.int32),
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampling=sequence.request.sampling,
            block_ids=tuple(np.array(table, dtype=np.int32) for table in tables),
            num_computed_tokens=sequence.num_computed_tokens,
            trace=sequence.request.trace,
        )

    def _cached_requests(self, rows: ScheduledRows) -> CachedRequests:
        # Runs over every row of every step: plain loops over few attributes, arrays made at once.
        token_ids, block_ids, source_steps = array("i"), array("i"), array("Q")
        token_ends, block_ends = array("I", [0]), array("I", [0])
        sequences = rows.sequences
        for sequence in sequences:
            known, num_sent = sequence.token_ids, sequence.num_sent_tokens
            source_step = 0
            if num_sent < len(known):
                token_ids.extend(known[num_sent:])
                sequence.num_sent_tokens = len(known)
            elif sequence.num_placeholders:
                # What it computes follows from its last step, whose tokens the workers will have.
                source_step = sequence.last_step
            sequence.source_step = source_step
            source_steps.append(source_step)
            table, num_sent = sequence.blocks.table, sequence.num_sent_blocks
            if num_sent < len(table):
                block_ids.extend(table[num_sent:])
                sequence.num_sent_blocks = len(table)
            token_ends.append(len(token_ids))
            block_ends.append(len(block_ids))
        handles = array("Q", [sequence.handle for sequence in sequences])
        num_computed = array("i", [sequence.num_computed_tokens for sequence in sequences])
        return CachedRequests(
            handles=_column(handles, np.uint64),
            num_computed_tokens=_column(num_computed, np.int32),
            new_block_ids=(
                _ragged(block_ids, block_ends),
                *(_new_blocks(sequences, table) for table in range(1, self._num_tables)),
            ),
            new_token_ids=_ragged(token_ids, token_ends),
            token_source_steps=_column(source_steps, np.uint64),
            draft_token_ids=_sent_drafts(rows) if self._has_drafts else None,
        )


def _sent_blocks(sequence: Sequence) -> list[list[int]]:
    """What the workers were told of each block table."""
    counts = (sequence.num_sent_blocks, *sequence.num_sent_more)
    return [table[:count] for table, count in zip(sequence.blocks.tables, counts, strict=True)]


def _new_blocks(sequences: Iterable[Sequence], number: int) -> Ragged:
    """What the workers do not know yet of a further block table of each sequence."""
    block_ids, ends = array("i"), array("I", [0])
    for sequence in sequences:
        table, num_sent = sequence.blocks.tables[number], sequence.num_sent_more
        block_ids.extend(table[num_sent[number - 1] :])
        num_sent[number - 1] = len(table)
        ends.append(len(block_ids))
    return _ragged(block_ids, ends)


def _want_drafts(sequence: Sequence) -> int:
    """How many drafts a sequence's row shall propose; noted, as the next one has room for so many."""
    most = sequence.max_len - len(sequence.token_ids) - 2
    sequence.num_wanted = max(0, min(sequence.draft_limit.next(), most))
    return sequence.num_wanted


def _sent_drafts(rows: ScheduledRows) -> Ragged | None:
    """Drafts of the rows that are not fed, None when no row has any."""
    drafts = [
        [] if sequence.num_placeholders else sequence.drafts[:num_drafts]
        for sequence, num_drafts in zip(rows.sequences, rows.num_drafts, strict=True)
    ]
    return Ragged.from_rows(drafts) if any(drafts) else None


def _ragged(values: "array[int]", offsets: "array[int]") -> Ragged:
    return Ragged(_column(values, np.int32), _column(offsets, np.uint32))


def _column(values: "array[int]", dtype: DTypeLike) -> NDArray[Any]:
    """The array itself, seen by numpy."""
    return np.frombuffer(values, dtype=dtype)
