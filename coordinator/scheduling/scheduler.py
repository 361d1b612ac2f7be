"""Plans steps, commits their results, aborts. No I/O, no clock, no await.

There is no prefill or decode phase: a sequence's computed tokens catch up with its known ones, and a
sequence that has caught up samples one more. Rules that hold at all times:

- A cohort has one step in flight, or with asynchronous scheduling two: the second is planned before
  the tokens of the first are known, with a placeholder for each, and workers feed them. Placeholders
  count like tokens for blocks, budgets and lengths, so no row is planned past the longest output.
  A row that was planned before its sequence's end was known is dropped at its commit.
- Running sequences stand in order of rank, which is that of arrival unless requests have priorities;
  the last one gives way when blocks run out, so the first always progresses. Nobody gives way to a
  sequence that still waits.
- Blocks may be freed while a step that writes them is in flight: every rank runs steps in order, so
  their next owner's step overwrites them before it reads them.
- A block is published to the prefix cache when the step that filled it is committed and its sequence
  still runs, so others find only what every rank has computed. Nobody writes a full block again:
  what a row in flight writes after its sequence has ended lies behind all that was published.
- A sequence is admitted when blocks for all its known tokens are free and one more for every running
  sequence, so what is admitted is not preempted again before others have grown by a block. The
  watermark may ask for more.
"""

from collections import deque

from common.config import ScheduleConfig
from common.errors import CacheFull, InvalidRequest
from common.requests import Request, TokenDelta
from common.step import GrammarMask, ModelRunnerOutput, SchedulerOutput
from coordinator.kv.cache_groups import BlockNeeds, make_allocator
from coordinator.scheduling.budget import StepBudget
from coordinator.scheduling.cohorts import Cohorts, fair_tokens, insert_by_rank
from coordinator.scheduling.committing import commit_prompt_logprobs, commit_tokens
from coordinator.scheduling.counters import ScheduleCounters
from coordinator.scheduling.draft_room import DraftRoom
from coordinator.scheduling.grammar_masks import GrammarMasks
from coordinator.scheduling.planned_step import PlannedStep, start_rows
from coordinator.scheduling.planner import ScheduledRows, StepPlanner
from coordinator.scheduling.preemption import last_in_rank
from coordinator.scheduling.sequence import Sequence, SequenceEvent, SequenceState, TokenMatcher
from coordinator.scheduling.shared_prompts import leaders_blocks
from coordinator.scheduling.waiting_queue import FirstComeQueue, PriorityQueue, WaitingQueue


class Scheduler:
    """All sequences of a replica and the blocks they hold.

    Its outputs must be executed in order and its results handed back in the same order.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        *,
        num_stages: int,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        has_prefix_cache: bool = True,
        most_drafts: int = 0,
        table_windows: tuple[int, ...] = (0,),
    ) -> None:
        """most_drafts: draft tokens of a row, at most; 0: workers propose none.

        table_windows: tokens that the layers of each block table see, 0: all.
        """
        self.config = config
        self._most_drafts = most_drafts
        self._max_steps_in_flight = config.steps_in_flight(num_stages)
        self._eos_token_ids = eos_token_ids
        needs = BlockNeeds(
            block_size=block_size, windows=table_windows, most_in_flight=config.cohort_tokens
        )
        self._allocator = make_allocator(
            needs, num_blocks=num_blocks, has_prefix_cache=has_prefix_cache
        )
        self._draft_room = DraftRoom(self._allocator)
        self._planner = StepPlanner(
            check_state_every=config.check_state_every,
            has_drafts=most_drafts > 0,
            num_tables=len(table_windows),
        )
        self._cohorts = Cohorts(config.num_cohorts(num_stages), most_steps=config.steps_of_cohort)
        queue_type = PriorityQueue if config.has_priorities else FirstComeQueue
        self._waiting: WaitingQueue = queue_type(config.max_waiting)
        self._num_watermark_blocks = int(config.admission_watermark * (num_blocks - 1))
        self._running: dict[int, Sequence] = {}
        self._sequences: dict[int, Sequence] = {}
        self._in_flight: deque[PlannedStep] = deque()
        self._last_committed = 0
        self._last_handle = 0
        self._masks = GrammarMasks()
        self._num_constrained = 0
        self.failures: list[tuple[int, str]] = []
        """Requests that ended by a fault of ours, with the reason; whoever tells them empties it."""
        self.counters = ScheduleCounters()
        self.max_sequence_len = min(max_model_len, self._allocator.capacity)
        """Most tokens of a sequence, prompt and output: the model's length or all the cache holds."""

    @property
    def num_waiting(self) -> int:
        """Sequences waiting, preempted ones included."""
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the sequences that wait; what is cached of them is not looked up."""
        return sum(sequence.num_tokens for sequence in self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._allocator.num_free_blocks

    @property
    def has_undelivered_finishes(self) -> bool:
        """True while workers hold a request that is finished or preempted."""
        return self._planner.has_undelivered_drops

    def begin_generation(self, *, epoch: int, generation: int) -> None:
        """Number steps from 1, on workers that hold no request."""
        assert not self._running, "sequences still hold blocks of the former generation"
        assert not self._in_flight, "steps of the former generation are still in flight"
        self._last_committed = 0
        self._planner.begin_generation(epoch=epoch, generation=generation)

    def end_generation(self) -> None:
        """Forget every sequence and every step in flight: what the workers hold of them is void."""
        for handle in list(self._sequences):
            self.abort(handle)
        while self._in_flight:
            self._end_step(self._in_flight.popleft())
        self._masks.forget()
        # The next generation's workers may have other keys and values in their blocks, or none.
        self._allocator.forget_prefixes()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        assert not self._sequences, "blocks of a sequence are published once they are full"
        self._allocator.forget_prefixes()

    def state_digest(self) -> bytes:
        """What workers must answer once they have run every step planned so far and no other."""
        return self._planner.state_digest(self._running.values())

    def add(
        self,
        request: Request,
        *,
        leader: int | None = None,
        matcher: TokenMatcher | None = None,
    ) -> int:
        """Queue a request and return its handle.

        leader: a sequence with the same prompt, whose blocks this one shares. matcher: the grammar of
        its output, of nobody else. Raises InvalidRequest when it can never run, Overloaded when the
        queue is full.
        """
        num_tokens = len(request.prompt_token_ids)
        if num_tokens >= self.max_sequence_len:
            raise InvalidRequest(
                f"the prompt has {num_tokens} tokens; prompt and output together may have "
                f"{self.max_sequence_len}",
                param="prompt",
            )
        sequence = Sequence(
            self._last_handle + 1,
            request,
            max_sequence_len=self.max_sequence_len,
            eos_token_ids=self._eos_token_ids,
            has_priorities=self.config.has_priorities,
            most_drafts=self._most_drafts,
            leader=None if leader is None else self._sequences.get(leader),
            matcher=matcher,
        )
        self._waiting.append(sequence)
        self._last_handle = sequence.handle
        self._sequences[sequence.handle] = sequence
        self._num_constrained += matcher is not None
        return sequence.handle

    def abort(self, handle: int) -> None:
        """Forget a sequence and free its blocks, also while it is in flight; unknown ones are ignored."""
        sequence = self._sequences.get(handle)
        if sequence is not None:
            self._finish(sequence)

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run before a step in flight is committed."""
        if len(self._in_flight) >= self._max_steps_in_flight or self._masks.is_one_due:
            return None
        for cohort in self._cohorts.ready_in_turn():
            new, cached = self._choose_rows(cohort)
            if new or cached:
                return self._start_step(cohort, new=new, cached=cached)
        return None

    def take_grammar_mask(self) -> tuple[SchedulerOutput, GrammarMask] | None:
        """A planned step that waits for its grammar mask, and the mask, once that can be made."""
        return self._masks.take()

    def plan_step_without_tokens(self) -> SchedulerOutput:
        """Plan a step that only tells the workers which requests are finished or preempted."""
        return self._start_rowless_step(self._planner.plan_without_rows())

    def plan_warm_up(self) -> SchedulerOutput:
        """Plan a step through all stages that touches only the null block; its token is discarded."""
        self._last_handle += 1
        return self._start_rowless_step(self._planner.plan_warm_up(self._last_handle))

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[tuple[int, TokenDelta]]:
        """Commit the oldest step in flight and return what each request gets, by handle.

        Requests named in result.request_errors are forgotten. Raises StepFailed when the result does
        not belong to the step or leaves out a row that had to sample.
        """
        step = self._in_flight.popleft()
        assert step.output is output, "steps are committed in the order they were planned"
        self._end_step(step)
        for handle, _ in result.request_errors:
            self.abort(handle)
        if step.cohort is None:
            return []
        commit_prompt_logprobs(self._sequences, result)
        deltas = commit_tokens(
            step,
            result,
            allocator=self._allocator,
            counters=self.counters,
            failures=self.failures,
            on_end=self._finish,
        )
        step.publish_prefixes(self._allocator)
        return deltas

    def _choose_rows(self, cohort: int) -> tuple[ScheduledRows, ScheduledRows]:
        """Rows the workers do not hold yet, and rows they hold."""
        self._cohorts.even_out(cohort)
        budget = StepBudget(
            num_tokens=self.config.step_tokens,
            num_seats=self.config.sequence_limit - len(self._running),
            # A prompt may have a step to itself where no one else needs it.
            most_of_prompt=self.config.max_prefill_chunk if len(self._sequences) > 1 else None,
        )
        num_preemptions = self.counters.num_preemptions
        cached = self._continue_running(cohort, budget)
        if self.counters.num_preemptions > num_preemptions:
            return ScheduledRows(), cached
        return self._admit_waiting(cohort, budget), cached

    def _continue_running(self, cohort: int, budget: StepBudget) -> ScheduledRows:
        # Runs over every row of every step, so a row that needs nothing but a token costs little.
        rows = ScheduledRows()
        for sequence in self._cohorts.members(cohort):
            if not budget.num_tokens or sequence.state is not SequenceState.RUNNING:
                break  # the victims are the last ones, so nothing behind a preempted one runs
            num_tokens = len(sequence.token_ids) + sequence.num_placeholders
            if num_tokens >= sequence.max_len:
                continue  # the last token of the output is in flight
            num_missing, num_drafts = num_tokens - sequence.num_computed_tokens, 0
            if is_chunk := num_missing > 1:
                num_missing = budget.fit(num_missing)
                num_tokens = sequence.num_computed_tokens + num_missing
            if num_tokens > sequence.blocks.num_slots and not self._make_room(sequence, num_tokens):
                break
            if self._most_drafts and not is_chunk:
                if sequence.source_step > self._last_committed:
                    continue  # how far it is computed is told by one step in flight, not by two
                # Nobody behind this row shall miss its token for the sake of a guess.
                num_left = budget.num_tokens - self._cohorts.size(cohort) + len(rows)
                num_drafts = self._draft_room.num_drafts(
                    sequence, num_tokens=num_tokens, most=num_left, num_spare=len(self._running)
                )
                num_missing += num_drafts
            budget.num_tokens -= num_missing
            rows.append(sequence, num_missing, num_drafts)
        return rows

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a sequence blocks for so many tokens; False when it was preempted itself."""
        while True:
            try:
                self._allocator.append(sequence.blocks, num_tokens)
            except CacheFull:
                victim = last_in_rank(self._running)
                self._preempt(victim)
                if victim is sequence:
                    return False
            else:
                return True

    def _admit_waiting(self, cohort: int, budget: StepBudget) -> ScheduledRows:
        num_sequences = min(len(self._running) + len(self._waiting), self.config.sequence_limit)
        num_places = self._cohorts.fair_size(num_sequences) - self._cohorts.size(cohort)
        rows = ScheduledRows()
        if not self._waiting or min(num_places, budget.num_seats, budget.num_tokens) < 1:
            return rows
        num_tokens_left = fair_tokens(
            self._waiting,
            num_cohorts=1 + self._cohorts.num_idle_beside(cohort),
            most=self.config.step_tokens,
        )
        while budget.num_tokens and budget.num_seats and len(rows) < num_places:
            sequence = self._waiting.peek()
            if sequence is None or sequence.waits_for_leader:
                break
            # A preempted sequence waits for its tokens in flight, and all behind it wait.
            if sequence.last_step > self._last_committed:
                break
            # What would lie beyond this cohort's share for the most part is left to another one.
            is_for_others = bool(rows) and sequence.num_tokens > 2 * num_tokens_left
            if is_for_others or not self._admit(sequence, cohort):
                break
            budget.take_seat()
            num_tokens_left -= sequence.num_tokens
            num_missing = budget.fit(sequence.num_tokens - sequence.num_computed_tokens)
            budget.num_tokens -= num_missing
            self._allocator.append(sequence.blocks, sequence.num_computed_tokens + num_missing)
            rows.append(sequence, num_missing)
        return rows

    def _admit(self, sequence: Sequence, cohort: int) -> bool:
        """Let a waiting sequence run; False when the blocks do not suffice."""
        sequence.learn_from_leader()
        try:
            num_computed = self._allocator.reserve(
                sequence.blocks,
                sequence.token_ids,
                num_spare=self._num_spare_blocks,
                reads_prefixes=sequence.reads_prefixes,
                beside=leaders_blocks(sequence, self._allocator),
            )
        except CacheFull:
            return False
        if sequence.begin(num_computed):
            self.counters.note_prompt(num_tokens=sequence.num_tokens, num_cached=num_computed)
        self._waiting.remove(sequence)
        sequence.move(SequenceEvent.ADMIT)
        insert_by_rank(self._running, sequence)
        self._cohorts.join(sequence, cohort)
        return True

    @property
    def _num_spare_blocks(self) -> int:
        """Free blocks an admission must leave: one for each running table, and the watermark."""
        num_running = len(self._running) * self._allocator.num_tables
        return max(num_running, self._num_watermark_blocks) if num_running else 0

    def _preempt(self, sequence: Sequence) -> None:
        """Take everything computed away; tokens in flight are still committed."""
        self._stop_running(sequence)
        sequence.num_computed_tokens = 0
        sequence.move(SequenceEvent.PREEMPT)
        self._waiting.return_preempted(sequence)
        self._planner.drop_preempted(sequence.handle)
        self.counters.num_preemptions += 1

    def _finish(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._stop_running(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.move(SequenceEvent.FINISH)
        del self._sequences[sequence.handle]
        self._num_constrained -= sequence.matcher is not None
        self._planner.drop_finished(sequence.handle)

    def _stop_running(self, sequence: Sequence) -> None:
        del self._running[sequence.handle]
        self._cohorts.leave(sequence)
        self._allocator.release(sequence.blocks)

    def _start_step(
        self, cohort: int, *, new: ScheduledRows, cached: ScheduledRows
    ) -> SchedulerOutput:
        has_mask = self._num_constrained > 0 and (new.has_constrained or cached.has_constrained)
        output = self._planner.plan(new=new, cached=cached, grammar_mask_follows=has_mask)
        step = start_rows(output, cohort=cohort, new=new, cached=cached)
        if has_mask:
            self._masks.expect(output, step.sampling)
        self._cohorts.start_step(cohort)
        self._in_flight.append(step)
        return output

    def _start_rowless_step(self, output: SchedulerOutput) -> SchedulerOutput:
        self._in_flight.append(PlannedStep(output=output, cohort=None))
        return output

    def _end_step(self, step: PlannedStep) -> None:
        self._last_committed = step.output.step_id.step
        if step.cohort is not None:
            self._cohorts.end_step(step.cohort)
