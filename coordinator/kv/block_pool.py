"""The KV cache blocks of a replica and which of them are free. Knows blocks, not sequences.

A block that is freed while a step that writes it is still in flight may be handed out at once:
every rank runs steps in order, so whatever the older step writes there is overwritten by the later
step before anything reads it.
"""

from collections.abc import Sequence

from common.errors import CacheFull

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 to num_blocks - 1; block 0 is the null block, which no sequence owns."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "a cache has the null block and at least one other"
        self.num_blocks = num_blocks
        # Taken from the end: the block freed last is reused first.
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._is_taken = bytearray(num_blocks)

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take count blocks; raises CacheFull, taking none, when fewer are free."""
        if count > len(self._free):
            raise CacheFull(f"{count} KV cache blocks are needed and {len(self._free)} are free")
        if count == 0:
            return []
        taken = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for block in taken:
            self._is_taken[block] = True
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back; a later allocation gets them in the order given here."""
        for block in reversed(blocks):
            assert self._is_taken[block], f"block {block} is freed but nobody owns it"
            self._is_taken[block] = False
            self._free.append(block)
