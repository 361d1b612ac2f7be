"""Which prefixes are known in every block table of a model, where layers see different windows.

A layer that sees everything needs the whole prefix, one with a sliding window only the blocks that the
next token sees of it; those before may be gone.
"""

from array import array

from coordinator.kv.block_pool import NULL_BLOCK
from coordinator.kv.prefix_cache import NoPrefixCache, PrefixCache, PrefixIndex


def first_seen_block(num_tokens: int, *, window: int, block_size: int) -> int:
    """Number of the block with the earliest token that the one after num_tokens tokens sees.

    window: tokens it sees, itself included; 0: all.
    """
    return max(0, num_tokens - window + 1) // block_size if window else 0


class GroupPrefixes:
    """A prefix index for each block table; all draw their blocks from one pool."""

    def __init__(
        self, windows: tuple[int, ...], *, block_size: int, has_prefix_cache: bool
    ) -> None:
        self._windows = windows
        self._block_size = block_size
        self._indexes: list[PrefixIndex] = [
            PrefixCache(block_size=block_size) if has_prefix_cache else NoPrefixCache()
            for _ in windows
        ]

    def find(self, hashes: list[bytes], token_ids: "array[int]") -> list[list[int]]:
        """Of each table the blocks of the longest prefix that all know, one token short of the whole.

        Null blocks stand for those that need not be known. Empty where nothing is.
        """
        most = (len(token_ids) - 1) // self._block_size
        found: list[list[int | None]] = []
        for window, index in zip(self._windows, self._indexes, strict=True):
            if window:
                found.append(
                    [index.look_up(hashes, token_ids, index=block) for block in range(most)]
                )
            else:
                found.append([*index.find(hashes, token_ids)])
                most = min(most, len(found[-1]))
        runs = [_run_lengths(blocks) for blocks in found]
        for length in range(most, 0, -1):
            first = [self._first(length, window) for window in self._windows]
            if all(
                run[length - 1] >= length - start for run, start in zip(runs, first, strict=True)
            ):
                return [
                    [NULL_BLOCK] * start + [block or NULL_BLOCK for block in blocks[start:length]]
                    for blocks, start in zip(found, first, strict=True)
                ]
        return []

    def publish(
        self, hashes: list[bytes], token_ids: "array[int]", *, table: int, index: int, block: int
    ) -> bool:
        """As `PrefixIndex.publish`, in one table."""
        return self._indexes[table].publish(hashes, token_ids, index=index, block=block)

    def forget(self, block: int) -> None:
        """Take a block back from whichever table had it."""
        for index in self._indexes:
            index.forget(block)

    def clear(self) -> None:
        """Forget every block."""
        for index in self._indexes:
            index.clear()

    def _first(self, num_blocks: int, window: int) -> int:
        return first_seen_block(
            num_blocks * self._block_size, window=window, block_size=self._block_size
        )


def _run_lengths(blocks: list[int | None]) -> list[int]:
    """For each block how many known ones end with it, itself included."""
    lengths: list[int] = []
    for block in blocks:
        lengths.append(0 if block is None else 1 + (lengths[-1] if lengths else 0))
    return lengths
