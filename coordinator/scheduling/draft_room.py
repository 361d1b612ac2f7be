"""How many drafts a step has room for in one row. Knows blocks and lengths, not other rows."""

from coordinator.kv.allocator import KVAllocator
from coordinator.scheduling.sequence import Sequence


class DraftRoom:
    """Room for drafts in the blocks of an allocator: they take what is free and preempt nobody."""

    def __init__(self, allocator: KVAllocator) -> None:
        self._allocator = allocator

    def num_drafts(self, sequence: Sequence, *, num_tokens: int, most: int, num_spare: int) -> int:
        """Drafts behind num_tokens tokens that a step checks: those there are, or may be by then.

        Blocks are taken for them as long as num_spare stay free.
        """
        num_there = sequence.num_wanted if sequence.num_placeholders else len(sequence.drafts)
        num_drafts = min(num_there, most, sequence.max_len - num_tokens - 1)
        num_short = num_tokens + num_drafts - sequence.blocks.num_slots
        if num_drafts > 0 and num_short > 0:
            num_blocks = self._allocator.num_missing(sequence.blocks, num_tokens + num_drafts)
            if num_blocks + num_spare <= self._allocator.num_free_blocks:
                self._allocator.append(sequence.blocks, num_tokens + num_drafts)
            else:
                num_drafts -= num_short
        return max(num_drafts, 0)
