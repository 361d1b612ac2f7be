"""Digests of what this rank knows of the live requests, and of their keys and values."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from common.state_digest import state_digest
from common.step import Int64s
from worker_service.attention.kv_cache import KVCache
from worker_service.batch.request_states import RequestStates
from worker_service.batch.slot_lists import SlotLists


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Digest of the request states, and of the computed part of the cache; None: not asked for."""

    state: bytes | None = None
    kv: bytes | None = None


def digest_state(states: RequestStates, kv_cache: KVCache) -> Digests:
    """Both digests of what stands now."""
    return Digests(state=_state_digest(states), kv=_kv_digest(states, kv_cache))


def _state_digest(states: RequestStates) -> bytes:
    """Digest of handles, block tables and planned counts, which slots do not enter.

    A step planned before it is known which drafts are right counts them all, here and in the
    scheduler's books; what is computed indeed is checked with the next step of the request.
    """
    slots = [(handle, states.slot(handle)) for handle in states.handles]
    return state_digest(
        (handle, [table.row(slot) for table in states.tables], int(states.num_planned[slot]))
        for handle, slot in slots
    )


def _kv_digest(states: RequestStates, kv_cache: KVCache) -> bytes:
    """SHA-256 over keys, then values, of every computed token, layer after layer.

    Tokens count in the order of their requests' handles. Of a block only the token slots that hold
    computed tokens count, and of layers with a window of their own only those the next token sees:
    the others are undefined.
    """
    digest = hashlib.sha256()
    groups = kv_cache.groups
    token_slots = [
        torch.from_numpy(_token_slots(states, blocks, window=window))
        for blocks, window in zip(states.tables, groups.windows, strict=True)
    ]
    for layer, table in enumerate(groups.tables):
        for slots_KSD in kv_cache.slots(layer):
            stored = slots_KSD[:, token_slots[table].to(slots_KSD.device)]
            digest.update(stored.contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.digest()


def _token_slots(states: RequestStates, blocks: SlotLists, *, window: int) -> Int64s:
    """Cache slots of all live requests' computed tokens in a block table, in the order of their handles.

    window: only of the last ones, which the next token sees beside itself; 0: of all.
    """
    parts = [np.empty(0, dtype=np.int64)]
    for handle in states.handles:
        slot = states.slot(handle)
        num_computed = int(states.num_computed[slot])
        first = max(0, num_computed - window + 1) if window else 0
        block_index, offset = np.divmod(
            np.arange(first, num_computed, dtype=np.int64), states.block_size
        )
        parts.append(blocks.row(slot).astype(np.int64)[block_index] * states.block_size + offset)
    return np.concatenate(parts)
