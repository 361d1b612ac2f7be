"""What a sequence takes over of another one with the same prompt."""

from collections.abc import Sequence as Rows

from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.sequence import Sequence, SequenceState


def leaders_blocks(sequence: Sequence, allocator: KVAllocator) -> Rows[list[int]]:
    """Of each table the full blocks with the sequence's prompt: ranks run the steps that fill them first."""
    leader = sequence.leader
    if leader is None or leader.state is not SequenceState.RUNNING:
        return ()
    return allocator.shared(leader.blocks, sequence.num_prompt_tokens)
