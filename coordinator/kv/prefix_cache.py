"""Which block holds which prefix: a chain of block hashes, each over its parent's and its tokens.

Knows what stands in blocks, not who owns them. Only full blocks have a hash, so what a hash names
never changes while its block is published.
"""

import hashlib
from array import array
from typing import Protocol

ROOT_HASH = b""
"""Parent of the first block's hash."""


class PrefixIndex(Protocol):
    """Where the keys and values of known prefixes stand.

    `hashes` belong to the sequence that asks: one per full block of its tokens, computed as far as
    they were needed.
    """

    def find(self, hashes: list[bytes], token_ids: "array[int]") -> list[int]:
        """Blocks that hold the longest published prefix, at least one token short of the whole."""
        ...

    def look_up(self, hashes: list[bytes], token_ids: "array[int]", *, index: int) -> int | None:
        """The block that holds block number `index` of a sequence, whether or not those before it are there."""
        ...

    def publish(
        self, hashes: list[bytes], token_ids: "array[int]", *, index: int, block: int
    ) -> bool:
        """Say that a block holds block number `index` of a sequence.

        False when another block holds the same prefix already: the first one stays.
        """
        ...

    def forget(self, block: int) -> None:
        """Take a block back: its contents are about to change. It need not be published."""
        ...

    def clear(self) -> None:
        """Forget every block."""
        ...


class PrefixCache:
    """The published blocks of one replica by the hash of the prefix that ends with them."""

    def __init__(self, *, block_size: int) -> None:
        self._block_size = block_size
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}

    def find(self, hashes: list[bytes], token_ids: "array[int]") -> list[int]:
        """Look block after block up; the last token is left out, since it has to be computed."""
        found: list[int] = []
        for index in range((len(token_ids) - 1) // self._block_size):
            block = self._block_by_hash.get(self._hash(hashes, token_ids, index))
            if block is None:
                break
            found.append(block)
        return found

    def look_up(self, hashes: list[bytes], token_ids: "array[int]", *, index: int) -> int | None:
        """Look one block up by the hash of all tokens up to its end."""
        return self._block_by_hash.get(self._hash(hashes, token_ids, index))

    def publish(
        self, hashes: list[bytes], token_ids: "array[int]", *, index: int, block: int
    ) -> bool:
        """Name the block by its hash unless that hash has a block."""
        block_hash = self._hash(hashes, token_ids, index)
        if self._block_by_hash.setdefault(block_hash, block) != block:
            return False
        self._hash_by_block[block] = block_hash
        return True

    def forget(self, block: int) -> None:
        """Unname the block."""
        block_hash = self._hash_by_block.pop(block, None)
        if block_hash is not None:
            del self._block_by_hash[block_hash]

    def clear(self) -> None:
        """Unname every block."""
        self._block_by_hash.clear()
        self._hash_by_block.clear()

    def _hash(self, hashes: list[bytes], token_ids: "array[int]", index: int) -> bytes:
        """Hash of block `index`; the chain is extended up to it."""
        while len(hashes) <= index:
            start = len(hashes) * self._block_size
            tokens = token_ids[start : start + self._block_size]
            parent = hashes[-1] if hashes else ROOT_HASH
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[index]


class NoPrefixCache:
    """Every prefix is computed anew."""

    def find(self, hashes: list[bytes], token_ids: "array[int]") -> list[int]:
        """Find nothing."""
        return []

    def look_up(self, hashes: list[bytes], token_ids: "array[int]", *, index: int) -> int | None:
        """Find nothing."""
        return None

    def publish(
        self, hashes: list[bytes], token_ids: "array[int]", *, index: int, block: int
    ) -> bool:
        """Publish nothing."""
        return False

    def forget(self, block: int) -> None:
        """Do nothing: there is nothing to forget."""

    def clear(self) -> None:
        """Do nothing: there is nothing to forget."""
