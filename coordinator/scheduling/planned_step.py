"""A step in flight: what its commit has to know, and the check of its result."""

from dataclasses import dataclass

from common.errors import StepFailed
from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.planner import ScheduledRows
from coordinator.scheduling.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedStep:
    """A step that was planned and is not committed; cohort None: it belongs to no cohort.

    sampling: the sequences that sample, in row order, each with the drafts it was planned to check;
    filling: those of a prompt that fill a block and do not sample, each with its computed tokens after
    this step, as later ones may have been planned before the commit.
    """

    output: SchedulerOutput
    cohort: int | None
    sampling: tuple[tuple[Sequence, int], ...] = ()
    filling: tuple[tuple[Sequence, int], ...] = ()

    def sampled(self, result: ModelRunnerOutput) -> list[tuple[Sequence, int]]:
        """The sequences of a result's rows: all that had to sample but those with an error.

        Raises StepFailed when the result belongs to another step, or its rows are not these.
        """
        step_id = self.output.step_id
        if result.key.step_id != step_id:
            raise StepFailed(f"{result.key.step_id} was answered in place of {step_id}")
        failed = {handle for handle, _ in result.request_errors}
        sampled = [row for row in self.sampling if row[0].handle not in failed]
        handles = result.handles.tolist()
        num_tokens = result.sampled_token_ids.lengths
        if [sequence.handle for sequence, _ in sampled] != handles or len(num_tokens) != len(
            handles
        ):
            raise StepFailed(
                f"step {step_id.step} had to sample {len(self.sampling)} requests and the "
                f"result names {len(handles)} with {len(num_tokens)} rows of tokens"
            )
        if (num_tokens == 1).all():
            return sampled
        for (sequence, num_planned), count in zip(sampled, num_tokens.tolist(), strict=True):
            if not 1 <= count <= 1 + num_planned:
                raise StepFailed(
                    f"step {step_id.step} had {num_planned} drafts of request {sequence.handle} and "
                    f"the result has {count} tokens of it"
                )
        return sampled

    def publish_prefixes(self, allocator: KVAllocator) -> None:
        """Let others find the blocks of prompts this step has filled."""
        for sequence, num_computed in self.filling:
            # One that was preempted or has ended since has no blocks.
            if sequence.state is SequenceState.RUNNING:
                allocator.publish(sequence.blocks, sequence.token_ids, num_computed=num_computed)


def start_rows(
    output: SchedulerOutput, *, cohort: int, new: ScheduledRows, cached: ScheduledRows
) -> PlannedStep:
    """Count a step's rows as computed, as if all their drafts were right, and note what it samples."""
    sampling: list[tuple[Sequence, int]] = []
    filling: list[tuple[Sequence, int]] = []
    last_step = output.step_id.step
    for rows in (new, cached):
        for sequence, num_tokens, num_drafts in zip(
            rows.sequences, rows.num_tokens, rows.num_drafts, strict=True
        ):
            num_computed = sequence.num_computed_tokens + num_tokens
            sequence.num_computed_tokens = sequence.num_planned_tokens = num_computed
            sequence.last_step = last_step
            num_known = len(sequence.token_ids) + sequence.num_placeholders
            if num_computed == num_known + num_drafts:
                sequence.num_placeholders += 1 + num_drafts
                sampling.append((sequence, num_drafts))
            elif num_computed >= sequence.blocks.publish_at:
                filling.append((sequence, num_computed))
    return PlannedStep(
        output=output, cohort=cohort, sampling=tuple(sampling), filling=tuple(filling)
    )
