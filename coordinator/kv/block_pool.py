"""The KV cache blocks of a replica: who owns how many, and in which order free ones are used again.

Knows blocks, not sequences, and not what stands in a block; only whether it is worth keeping. A
block that is freed while a step that writes it is still in flight may be handed out at once: every
rank runs steps in order, so whatever the older step writes there is overwritten by the later step
before anything reads it.
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
        self._worthless = list(range(num_blocks - 1, NULL_BLOCK, -1))
        # Free blocks worth keeping, the one unused longest first; as keys of a dict.
        self._kept: dict[int, None] = {}
        self._num_owners = [0] * num_blocks
        self._is_worth_keeping = bytearray(num_blocks)

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._worthless) + len(self._kept)

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of these nobody owns."""
        return sum(not self._num_owners[block] for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Take count blocks nobody owns; raises CacheFull, taking none, when fewer are free.

        Those worth keeping are taken last and are no longer worth it, the longest unused first.
        """
        if count > self.num_free:
            raise CacheFull(f"{count} KV cache blocks are needed and {self.num_free} are free")
        taken = [self._take_one() for _ in range(count)]
        for block in taken:
            self._num_owners[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Give blocks that are owned or worth keeping one more owner each."""
        for block in blocks:
            if not self._num_owners[block]:
                assert self._is_worth_keeping[block], f"block {block} holds nothing to share"
                del self._kept[block]
            self._num_owners[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Take one owner from each block; those left without one are free.

        A later allocation gets worthless ones in the order given here, and of those worth keeping
        the last first: what stands at the end of a sequence is asked for least.
        """
        for block in reversed(blocks):
            num_owners = self._num_owners[block] - 1
            assert num_owners >= 0, f"block {block} is freed but nobody owns it"
            self._num_owners[block] = num_owners
            if num_owners:
                continue
            if self._is_worth_keeping[block]:
                self._kept[block] = None
            else:
                self._worthless.append(block)

    def mark_worth_keeping(self, block: int) -> None:
        """Keep the contents of an owned block as long as possible once it is free."""
        assert self._num_owners[block], f"block {block} has no owner who could have filled it"
        self._is_worth_keeping[block] = True

    def keep_nothing(self) -> None:
        """Make every block worthless, owned or free."""
        self._worthless.extend(self._kept)
        self._kept.clear()
        self._is_worth_keeping = bytearray(self.num_blocks)

    def _take_one(self) -> int:
        if self._worthless:
            return self._worthless.pop()
        block = next(iter(self._kept))
        del self._kept[block]
        self._is_worth_keeping[block] = False
        return block
