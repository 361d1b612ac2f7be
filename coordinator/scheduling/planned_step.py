"""A step in flight: what its commit has to know, and the check of its result."""

from dataclasses import dataclass

from common.errors import StepFailed
from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedStep:
    """A step that was planned and is not committed; cohort None: it belongs to no cohort.

    sampling: the sequences that sample, in row order; filling: those that fill a block, each with
    its computed tokens after this step, as later ones may have been planned before the commit.
    """

    output: SchedulerOutput
    cohort: int | None
    sampling: tuple[Sequence, ...] = ()
    filling: tuple[tuple[Sequence, int], ...] = ()

    def sampled(self, result: ModelRunnerOutput) -> list[Sequence]:
        """The sequences of a result's tokens: all that had to sample but those with an error.

        Raises StepFailed when the result belongs to another step, or its rows are not these.
        """
        step_id = self.output.step_id
        if result.key.step_id != step_id:
            raise StepFailed(f"{result.key.step_id} was answered in place of {step_id}")
        failed = {handle for handle, _ in result.request_errors}
        sampled = [sequence for sequence in self.sampling if sequence.handle not in failed]
        handles = result.handles.tolist()
        num_tokens = len(result.sampled_token_ids.values)
        if num_tokens != len(handles) or [sequence.handle for sequence in sampled] != handles:
            raise StepFailed(
                f"step {step_id.step} had to sample {len(self.sampling)} requests and the "
                f"result names {len(handles)} with {num_tokens} tokens"
            )
        return sampled

    def publish_prefixes(self, allocator: KVAllocator) -> None:
        """Let others find the blocks this step has filled."""
        for sequence, num_computed in self.filling:
            # One that was preempted or has ended since has no blocks.
            if sequence.state is SequenceState.RUNNING:
                allocator.publish(sequence.blocks, sequence.token_ids, num_computed=num_computed)
