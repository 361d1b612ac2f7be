"""What a sequence takes over of another one with the same prompt."""

from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.sequence import Sequence, SequenceState


def leaders_blocks(sequence: Sequence, allocator: KVAllocator) -> list[int]:
    """Blocks that hold the sequence's prompt, full ones: ranks run the steps that fill them first."""
    leader = sequence.leader
    if leader is None or leader.state is not SequenceState.RUNNING:
        return []
    return allocator.full_blocks(leader.blocks, sequence.num_prompt_tokens)
