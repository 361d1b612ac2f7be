"""The tokens of a step become part of their sequences, and each request gets its delta.

Knows a step's rows and the results of those that sampled; ends no sequence itself.
"""

from collections.abc import Callable

from common.requests import TokenDelta
from common.step import ModelRunnerOutput
from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.counters import ScheduleCounters
from coordinator.scheduling.deltas import token_delta
from coordinator.scheduling.planned_step import PlannedStep
from coordinator.scheduling.sequence import Sequence, SequenceState

NO_DRAFTS: list[int] = []


def commit_tokens(
    step: PlannedStep,
    result: ModelRunnerOutput,
    *,
    allocator: KVAllocator,
    counters: ScheduleCounters,
    on_end: Callable[[Sequence], None],
) -> list[tuple[int, TokenDelta]]:
    """Append what every row has emitted and return what each request gets, by handle.

    Raises StepFailed, with nothing changed, when the result does not belong to the step. Blocks that
    are full of known tokens are published; on_end is called with each sequence that has ended.
    """
    deltas: list[tuple[int, TokenDelta]] = []
    last_step = step.output.step_id.step
    values = result.sampled_token_ids.values.tolist()
    ends = result.sampled_token_ids.offsets.tolist()
    drafts, logprobs, num_generated = result.drafts, result.logprobs, 0
    is_drafting = len(step.output.num_drafts_wanted) > 0
    # Runs over every row of every step, so a row that adds a token and ends nothing costs little.
    for row, (sequence, num_planned) in enumerate(step.sampled(result)):
        if sequence.state is SequenceState.FINISHED:
            continue  # ended while in flight
        first = ends[row]
        if num_planned:
            token_ids = values[first : ends[row + 1]]
            _note_drafts(sequence, num_planned, num_accepted=len(token_ids) - 1, counters=counters)
            num_taken, finish_reason = sequence.commit(token_ids, num_planned=num_planned)
            taken = tuple(token_ids[:num_taken])
        else:
            finish_reason = sequence.append(values[first])
            taken = (values[first],)
        if sequence.last_step != last_step:
            # A later step is on its way, and what it computes was fed to it.
            sequence.num_sent_tokens = len(sequence.token_ids)
        num_known = len(sequence.token_ids)
        if num_known > sequence.blocks.publish_at and sequence.state is SequenceState.RUNNING:
            allocator.publish(sequence.blocks, sequence.token_ids, num_computed=num_known - 1)
        if is_drafting:
            sequence.drafts = NO_DRAFTS if drafts is None else drafts.row(row).tolist()
        if logprobs is None:
            delta = TokenDelta(
                token_ids=taken,
                finish_reason=finish_reason,
                num_cached_tokens=sequence.num_cached_tokens,
            )
        else:
            delta = token_delta(
                taken,
                finish_reason=finish_reason,
                logprobs=logprobs,
                first_row=first,
                num_logprobs=sequence.request.sampling.num_logprobs,
                num_cached_tokens=sequence.num_cached_tokens,
            )
        deltas.append((sequence.handle, delta))
        num_generated += len(taken)
        if finish_reason is not None:
            on_end(sequence)
    counters.num_generated_tokens += num_generated
    return deltas


def _note_drafts(
    sequence: Sequence, num_planned: int, *, num_accepted: int, counters: ScheduleCounters
) -> None:
    """Learn how many of a row's drafts were right: there are fewer than planned where it had fewer."""
    num_drafts = min(num_planned, len(sequence.drafts))
    if num_drafts:
        counters.note_drafts(num_drafts=num_drafts, num_accepted=num_accepted)
        sequence.draft_limit.note(num_drafts=num_drafts, num_accepted=num_accepted)
