"""The digests of request states and cache."""

import numpy as np
import pytest
import torch

from common.requests import SamplingParams
from common.step import NewRequest
from worker_service.attention.kv_cache import KVCache
from worker_service.batch.request_states import RequestStates
from worker_service.runner.digests import digest_state
from worker_service.runner.memory import kv_cache_spec

SPEC = kv_cache_spec(num_layers=2, num_kv_heads=2, head_size=4, block_size=4, dtype=torch.bfloat16)


def make_cache() -> KVCache:
    """Five blocks of seeded bfloat16 keys and values."""
    cache = KVCache.allocate(SPEC, num_blocks=5, device=torch.device("cpu"), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(2)
    for layer in range(cache.num_layers):
        for tensor in cache.slots(layer):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache


def make_states(handles: list[int]) -> RequestStates:
    """Requests that own block `handle` and have computed 3 of their 4 tokens."""
    states = RequestStates(num_slots=1, max_model_len=8, block_size=4)
    for handle in handles:
        states.add(
            NewRequest(
                handle=handle,
                token_ids=np.arange(4, dtype=np.int32),
                num_prompt_tokens=4,
                sampling=SamplingParams(),
                block_ids=(np.array([handle], np.int32),),
                num_computed_tokens=3,
            )
        )
    return states


def test_slots_do_not_count():
    """The same requests in other slots have the same digests."""
    cache = make_cache()
    assert digest_state(make_states([1, 2]), cache) == digest_state(make_states([2, 1]), cache)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_every_computed_token_counts(layer, which):
    """One changed element at a computed token, in keys or values of any layer, is seen in the cache."""
    states, cache = make_states([1, 2]), make_cache()
    before = digest_state(states, cache)
    cache.slots(layer)[which][1, 2 * 4 + 2, 3] += 1
    after = digest_state(states, cache)
    assert after.kv != before.kv
    assert after.state == before.state


def test_undefined_token_slots_do_not_count():
    """Neither blocks of nobody nor the unfilled end of a block is part of the state."""
    states, cache = make_states([1, 2]), make_cache()
    before = digest_state(states, cache)
    cache.slots(0)[0][:, 3 * 4 :] += 1
    cache.slots(0)[0][:, 2 * 4 + 3] += 1
    assert digest_state(states, cache) == before


def test_handles_tables_and_counts_count():
    """Each of them changes the digest of the state."""
    cache = make_cache()
    advanced, moved = make_states([1]), make_states([1])
    advanced.num_planned[0] += 1
    moved.blocks.replace(0, np.array([2], np.int32))
    states = (make_states([1]), make_states([2]), advanced, moved)
    assert len({digest_state(each, cache).state for each in states}) == 4
