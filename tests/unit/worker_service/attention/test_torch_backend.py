"""The torch backend against attention written out naively over a dense cache.

Legend: N query heads, K key heads, D head size.
"""

import pytest
import torch
from torch import Tensor

from tests.fakes.paged_steps import Row, row_slots, small_cache, step_metadata
from worker_service.attention.backend import Attend
from worker_service.attention.kv_cache import KVCache
from worker_service.attention.torch_backend import TorchBackend
from worker_service.attention.torch_plan import TileSizes

torch.set_num_threads(1)

NUM_BLOCKS = 200


def naive(q_LND: Tensor, k_CKD: Tensor, v_CKD: Tensor) -> Tensor:
    """Causal attention of the last L of C tokens, in float64."""
    num_queries, num_heads, head_size = q_LND.shape
    context, num_kv_heads, _ = k_CKD.shape
    k = k_CKD.double().repeat_interleave(num_heads // num_kv_heads, dim=1)
    v = v_CKD.double().repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = torch.einsum("lnd,cnd->nlc", q_LND.double(), k) * head_size**-0.5
    visible = torch.ones(num_queries, context).tril(context - num_queries).bool()
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("nlc,cnd->lnd", weights, v)


class Sequences:
    """Sequences with random keys and values, stored in scattered blocks of one cache layer."""

    def __init__(
        self,
        lens: list[int],
        *,
        block_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(len(lens) * 1000 + sum(lens))
        order = (torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist()
        self.block_size = block_size
        self.blocks = [[order.pop() for _ in range(-(-n // block_size))] for n in lens]
        shape = (num_heads, head_size), (num_kv_heads, head_size), (num_kv_heads, head_size)
        self.q, self.k, self.v = (
            [torch.randn(n, *part, generator=generator).to(dtype) for n in lens] for part in shape
        )
        self.cache = small_cache(
            num_layers=1,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            dtype=dtype,
        )

    def run(self, spans: list[tuple[int, int, int]], sizes: TileSizes | None = None) -> None:
        """Run a step of (sequence, start, stop) rows and compare every output with naive attention."""
        rows = [
            Row(blocks=self.blocks[index], num_cached=start, num_tokens=stop - start)
            for index, start, stop in spans
        ]
        attend = Attend(
            TorchBackend(sizes), self.cache, step_metadata(rows, block_size=self.block_size)
        )
        step = [
            torch.cat([tokens[index][start:stop] for index, start, stop in spans])
            for tokens in (self.q, self.k, self.v)
        ]
        out = attend(0, *step)
        expected = torch.cat(
            [
                naive(self.q[index][start:stop], self.k[index][:stop], self.v[index][:stop])
                for index, start, stop in spans
            ]
        )
        tolerance = 1e-5 if out.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


SHAPES = {"grouped": (6, 2, 16), "multi-head": (4, 4, 8), "multi-query": (3, 1, 32)}
SIZES = {
    "one tile": TileSizes(),
    "small tiles": TileSizes(decode=40, chunk=7),
    "tiny tiles": TileSizes(decode=5, chunk=3),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_steps_equal_naive_attention(
    shape: tuple[int, int, int], block_size: int, sizes: TileSizes
) -> None:
    """Prompts, chunks behind a context, and decodes of ragged lengths, apart and mixed."""
    num_heads, num_kv_heads, head_size = shape
    sequences = Sequences(
        [37, 9, 64, 21],
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
    )
    sequences.run([(0, 0, 30)], sizes)
    sequences.run([(0, 30, 31), (1, 0, 1), (2, 0, 50)], sizes)
    sequences.run([(2, 50, 61), (0, 31, 32), (3, 0, 20), (1, 1, 5)], sizes)
    sequences.run([(0, 32, 33), (1, 5, 6), (2, 61, 62), (3, 20, 21)], sizes)
    sequences.run([(1, 6, 9), (2, 62, 64), (0, 33, 37)], sizes)


def test_long_chunk_spans_query_blocks() -> None:
    """A chunk of more queries than share one mask is causal in every part."""
    sequences = Sequences([700], block_size=16, num_heads=2, num_kv_heads=1, head_size=8)
    sequences.run([(0, 0, 90)])
    sequences.run([(0, 90, 650)])
    sequences.run([(0, 650, 700)], TileSizes(chunk=256))


def test_long_chunk_over_many_tiles() -> None:
    """Several query blocks over several tiles see what they should and nothing later."""
    sequences = Sequences([700], block_size=16, num_heads=2, num_kv_heads=1, head_size=8)
    sequences.run([(0, 0, 90)])
    sequences.run([(0, 90, 700)], TileSizes(chunk=100))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_bfloat16_accumulates_in_float32(sizes: TileSizes) -> None:
    """bfloat16 inputs give outputs that are off by their own rounding only."""
    sequences = Sequences(
        [33, 60], block_size=4, num_heads=4, num_kv_heads=2, head_size=16, dtype=torch.bfloat16
    )
    sequences.run([(0, 0, 32), (1, 0, 40)], sizes)
    sequences.run([(0, 32, 33), (1, 40, 58)], sizes)
    sequences.run([(1, 58, 59)], sizes)


def _cache_of_two_blocks() -> KVCache:
    return small_cache(num_layers=1, num_kv_heads=1, head_size=2, num_blocks=2, block_size=4)


def test_negative_slot_stores_nothing() -> None:
    """A token with slot -1 leaves the whole cache as it was; the others are stored."""
    cache = _cache_of_two_blocks()
    backend = TorchBackend()
    metadata = step_metadata([Row(blocks=[1], num_cached=0, num_tokens=3)], block_size=4)
    metadata.slot_mapping[1] = -1
    keys_KSD, values_KSD = cache.slots(0)
    backend.store(
        backend.plan(metadata, num_kv_heads=1),
        k_TKD=torch.ones(3, 1, 2),
        v_TKD=torch.ones(3, 1, 2),
        keys_KSD=keys_KSD,
        values_KSD=values_KSD,
    )
    assert (~keys_KSD[0, :, 0].isnan()).nonzero().flatten().tolist() == [4, 6]
    assert (~values_KSD[0, :, 0].isnan()).nonzero().flatten().tolist() == [4, 6]


def test_table_padding_is_never_read() -> None:
    """Columns of the block table past a row's blocks may hold anything, even ids out of range."""
    rows = [
        Row(blocks=[1, 2, 3], num_cached=8, num_tokens=1),
        Row(blocks=[4], num_cached=1, num_tokens=1),
        Row(blocks=[5], num_cached=1, num_tokens=2),
    ]
    cache = small_cache(num_layers=1, num_kv_heads=1, head_size=2, num_blocks=6, block_size=4)
    for row in rows:
        for tensor in cache.slots(0):
            tensor[:, row_slots(row, 4)] = 1.0
    metadata = step_metadata(rows, block_size=4, padding=1 << 30)
    out = Attend(TorchBackend(), cache, metadata)(0, *(torch.ones(4, 1, 2) for _ in range(3)))
    assert torch.equal(out, torch.ones(4, 1, 2))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gathers_follow_lengths(sizes: TileSizes) -> None:
    """A plan reads each row's context once, but for the padding of ragged decode tiles."""
    rows = [
        Row(blocks=list(range(1, 11)), num_cached=30, num_tokens=10),
        Row(blocks=list(range(11, 16)), num_cached=19, num_tokens=1),
        Row(blocks=list(range(16, 21)), num_cached=17, num_tokens=1),
        Row(blocks=[21, 22], num_cached=0, num_tokens=8),
    ]
    plan = TorchBackend(sizes).plan(step_metadata(rows, block_size=4), num_kv_heads=1)
    behind_context, prompt = plan.chunks
    assert sum(map(len, behind_context.tiles)) == 40
    assert all(len(slots) <= sizes.chunk for slots in behind_context.tiles)
    assert prompt.tiles == ()
    assert plan.decodes is not None
    tiles = [tile for group in plan.decodes.groups for tile in group.tiles]
    assert sum(len(tile.slots_F) for tile in tiles) <= 2 * 20
    assert all(len(tile.slots_F) <= sizes.decode for tile in tiles)
