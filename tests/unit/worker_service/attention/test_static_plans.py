"""Triton's attention by a plan that was made for the longest contexts, as graphs hold it.

Legend: R rows, K key heads, N query heads, D head size, T tokens.
"""

from dataclasses import replace

import pytest
import torch

from tests.fakes.paged_steps import Row, small_cache, step_metadata
from worker_service.attention.form import AttentionForm
from worker_service.attention.metadata import AttentionMetadata
from worker_service.attention.triton_backend import TritonBackend

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 4, 2, 16, 4
MAX_MODEL_LEN = 1200
NUM_BLOCKS = 700
ROWS = [
    Row(blocks=list(range(300, 300 + 270)), num_cached=1077, num_tokens=1),
    Row(blocks=[7, 3], num_cached=5, num_tokens=1),
    Row(blocks=[9], num_cached=0, num_tokens=1),
]
NUM_PADDED = 4


def padded(metadata: AttentionMetadata) -> AttentionMetadata:
    """The same step in buffers of four rows, with leftovers behind what it uses, planned for any step."""
    width = MAX_MODEL_LEN // BLOCK_SIZE
    table = torch.full((NUM_PADDED, width), NUM_BLOCKS - 1, dtype=torch.int32)
    table[: len(ROWS), : metadata.block_table.shape[1]] = metadata.block_table
    table[len(ROWS) :] = 0
    return replace(
        metadata,
        query_offsets=torch.arange(NUM_PADDED + 1, dtype=torch.int32),
        seq_lens=torch.cat((metadata.seq_lens, torch.ones(1, dtype=torch.int32))),
        block_table=table,
        slot_mapping=torch.cat((metadata.slot_mapping, torch.tensor([-1]))),
        query_lens_host=(1,) * NUM_PADDED,
        seq_lens_host=(MAX_MODEL_LEN,) * NUM_PADDED,
        max_query_len=1,
        max_seq_len=MAX_MODEL_LEN,
    )


@pytest.mark.parametrize("form", [AttentionForm(), AttentionForm(window=9)])
def test_a_plan_for_the_longest_contexts_fits_every_step(form: AttentionForm):
    """Rows that are there are answered as by their own plan; of the padding nothing is stored."""
    generator = torch.Generator().manual_seed(0)
    metadata = step_metadata(ROWS, block_size=BLOCK_SIZE)
    heads = NUM_HEADS + 2 * NUM_KV_HEADS
    qkv = torch.randn((len(ROWS), heads, HEAD_SIZE), generator=generator)
    stored = torch.randn((2, NUM_KV_HEADS, NUM_BLOCKS * BLOCK_SIZE, HEAD_SIZE), generator=generator)
    backend = TritonBackend()
    assert backend.has_static_plans
    answers: list[torch.Tensor] = []
    caches: list[torch.Tensor] = []
    for each, count in ((metadata, len(ROWS)), (padded(metadata), NUM_PADDED)):
        cache = small_cache(
            num_layers=1,
            num_kv_heads=NUM_KV_HEADS,
            head_size=HEAD_SIZE,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
        )
        keys_KSD, values_KSD = cache.slots(0)
        keys_KSD.copy_(stored[0])
        values_KSD.copy_(stored[1])
        given = torch.full((count, heads, HEAD_SIZE), 5.0)
        given[: len(ROWS)] = qkv
        out = backend.attend(
            backend.plan(each, num_kv_heads=NUM_KV_HEADS),
            qkv_THD=given,
            rotation=None,
            keys_KSD=keys_KSD,
            values_KSD=values_KSD,
            form=form,
        )
        answers.append(out[: len(ROWS)])
        caches.append(torch.stack((keys_KSD, values_KSD)))
    torch.testing.assert_close(answers[1], answers[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(caches[1], caches[0])
