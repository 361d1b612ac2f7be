"""The tokens of a step become part of their sequences, and each request gets its delta.

Knows a step's rows and the results of those that sampled; ends no sequence itself.
"""

from collections.abc import Callable

from common.requests import FinishReason, TokenDelta
from common.step import Logprobs, ModelRunnerOutput
from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.counters import ScheduleCounters
from coordinator.scheduling.deltas import token_delta
from coordinator.scheduling.planned_step import PlannedStep
from coordinator.scheduling.sequence import NO_DRAFTS, Sequence, SequenceState, TokenMatcher


def commit_prompt_logprobs(sequences: dict[int, Sequence], result: ModelRunnerOutput) -> None:
    """Keep the log-probabilities of prompts until the first token is there to go with them."""
    for part in result.prompt_logprobs:
        # One that has ended since is nobody's.
        if (sequence := sequences.get(part.handle)) is not None:
            sequence.add_prompt_logprobs(part)


def commit_tokens(
    step: PlannedStep,
    result: ModelRunnerOutput,
    *,
    allocator: KVAllocator,
    counters: ScheduleCounters,
    failures: list[tuple[int, str]],
    on_end: Callable[[Sequence], None],
) -> list[tuple[int, TokenDelta]]:
    """Append what every row has emitted and return what each request gets, by handle.

    Added to failures: sequences with a token that cannot be theirs, with the reason: a bug of ours.
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
        if num_planned or sequence.matcher is not None:
            token_ids = values[first : ends[row + 1]]
            if num_planned:
                _note_drafts(
                    sequence, num_planned, num_accepted=len(token_ids) - 1, counters=counters
                )
            if sequence.matcher is not None:
                token_ids, refused = _advance(sequence.matcher, token_ids)
                if refused is not None:
                    reason = f"token {refused} is not one its grammar allows"
                    failures.append((sequence.handle, reason))
                    on_end(sequence)
                    continue
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
        delta = _delta(sequence, taken, finish_reason, logprobs=logprobs, first_row=first)
        deltas.append((sequence.handle, delta))
        num_generated += len(taken)
        if finish_reason is not None:
            on_end(sequence)
    counters.num_generated_tokens += num_generated
    return deltas


def _advance(matcher: TokenMatcher, token_ids: list[int]) -> tuple[list[int], int | None]:
    """The tokens up to the end of the grammar, and the one it does not allow, if there is one."""
    for index, token_id in enumerate(token_ids):
        if not matcher.advance(token_id):
            return token_ids[:index], token_id
        if matcher.is_over:
            return token_ids[: index + 1], None
    return token_ids, None


def _delta(
    sequence: Sequence,
    token_ids: tuple[int, ...],
    finish_reason: FinishReason | None,
    *,
    logprobs: Logprobs | None,
    first_row: int,
) -> TokenDelta:
    """first_row: where the log-probabilities of the row's first token stand."""
    params = sequence.request.sampling
    if params.num_logprobs is None and params.num_prompt_logprobs is None:
        return TokenDelta(
            token_ids=token_ids,
            finish_reason=finish_reason,
            num_cached_tokens=sequence.num_cached_tokens,
        )
    return token_delta(
        token_ids,
        finish_reason=finish_reason,
        logprobs=logprobs,
        first_row=first_row,
        num_logprobs=params.num_logprobs,
        num_cached_tokens=sequence.num_cached_tokens,
        prompt_logprobs=sequence.take_prompt_logprobs(),
    )


def _note_drafts(
    sequence: Sequence, num_planned: int, *, num_accepted: int, counters: ScheduleCounters
) -> None:
    """Learn how many of a row's drafts were right: there are fewer than planned where it had fewer."""
    num_drafts = min(num_planned, len(sequence.drafts))
    if num_drafts:
        counters.note_drafts(num_drafts=num_drafts, num_accepted=num_accepted)
        sequence.draft_limit.note(num_drafts=num_drafts, num_accepted=num_accepted)
