"""A digest of what this rank knows of the live requests and of their keys and values."""

import hashlib

import numpy as np
import torch

from common.step import Int64s
from worker_service.attention.kv_cache import KVCache
from worker_service.batch.request_states import RequestStates


def state_digest(states: RequestStates, kv_cache: KVCache) -> bytes:
    """SHA-256 over handles, computed counts, block tables, and the cache of every computed token.

    Requests count in the order of their handles, whatever slots they have. Of a block only the
    token slots that hold computed tokens count: the others are undefined.
    """
    digest = hashlib.sha256()
    for handle in states.handles:
        slot = states.slot(handle)
        blocks = states.blocks.row(slot)
        digest.update(np.array([handle, len(blocks)], dtype="<u8").tobytes())
        digest.update(states.num_computed[slot].tobytes())
        digest.update(blocks.tobytes())
    token_slots = torch.from_numpy(_token_slots(states))
    for layer in range(kv_cache.num_layers):
        for slots_KSD in kv_cache.slots(layer):
            stored = slots_KSD[:, token_slots.to(slots_KSD.device)]
            digest.update(stored.contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.digest()


def _token_slots(states: RequestStates) -> Int64s:
    """Cache slots of the computed tokens of all live requests, in the order of their handles."""
    parts = [np.empty(0, dtype=np.int64)]
    for handle in states.handles:
        slot = states.slot(handle)
        block_index, offset = np.divmod(
            np.arange(states.num_computed[slot], dtype=np.int64), states.block_size
        )
        blocks = states.blocks.row(slot).astype(np.int64)
        parts.append(blocks[block_index] * states.block_size + offset)
    return np.concatenate(parts)
