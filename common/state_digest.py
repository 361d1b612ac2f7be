"""A digest of what a scheduler and a worker must agree on about the live requests of a replica.

Both services compute it, each from its own books; equal digests mean that neither has drifted.

SHA-256 over these bytes, every integer little-endian:

    uint64  number of requests
    for each request, in increasing order of handle:
        uint64  handle
        uint64  computed tokens: those whose keys and values stand in the cache
        uint64  number of KV cache groups
        for each group, in the order of the block tables:
            uint64  number of blocks
            int32   block id, for each block of the table
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

BlockIds = Sequence[int] | NDArray[np.int32]


def state_digest(rows: Iterable[tuple[int, Sequence[BlockIds], int]]) -> bytes:
    """Digest of requests given as (handle, block ids per KV cache group, computed tokens).

    Rows may come in any order; handles are distinct. 32 bytes.
    """
    ordered = sorted(rows, key=lambda row: row[0])
    digest = hashlib.sha256(_uint64s(len(ordered)))
    for handle, block_ids_by_group, num_computed_tokens in ordered:
        digest.update(_uint64s(handle, num_computed_tokens, len(block_ids_by_group)))
        for block_ids in block_ids_by_group:
            digest.update(_uint64s(len(block_ids)))
            digest.update(np.asarray(block_ids, dtype="<i4").tobytes())
    return digest.digest()


def _uint64s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)
