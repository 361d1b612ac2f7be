"""Paged attention and the store of keys and values as Triton kernels, against torch in float64.

Legend: T tokens, N query heads, K key heads, S slots, D head size.
"""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.fakes.triton_device import DEVICE, poisoned
from worker_service.kernels.kv_store import store_keys_and_values, store_reference
from worker_service.kernels.launches import num_launches
from worker_service.kernels.paged_attention import PagedStep, Scores, Tiling, attend_paged

torch.set_num_threads(1)

SCALES = {"k_scale": 0.03, "v_scale": 0.02}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """rows: queries and context of each; shape: N, K, D."""

    rows: tuple[tuple[int, int], ...] = ((30, 30), (1, 9), (7, 50))
    shape: tuple[int, int, int] = (6, 2, 16)
    block_size: int = 4
    window: int = 0
    soft_cap: float = 0.0
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    tiling: Tiling = field(default_factory=lambda: Tiling(queries=4, keys=16))


DECODES = ((1, 100), (1, 9), (1, 1), (3, 70))
SPLIT = Tiling(queries=4, keys=16, splits=4)
CASES = {
    "grouped": Case(),
    "SmolLM2": Case(shape=(9, 3, 64), block_size=16),
    "odd head size": Case(shape=(5, 1, 48), block_size=16),
    "multi-head": Case(shape=(4, 4, 32)),
    "one query a tile": Case(tiling=Tiling(queries=1, keys=16)),
    "window": Case(shape=(9, 3, 64), window=11),
    "window of one": Case(window=1),
    "cap": Case(soft_cap=5.0),
    "window and cap": Case(window=17, soft_cap=2.0),
    "splits": Case(rows=DECODES, tiling=SPLIT),
    "splits, window and cap": Case(rows=DECODES, window=20, soft_cap=5.0, tiling=SPLIT),
    "bfloat16": Case(shape=(8, 4, 32), dtype=torch.bfloat16),
    "int8 cache": Case(shape=(8, 4, 32), cache_dtype=torch.int8),
    "fp8 cache": Case(shape=(8, 4, 32), cache_dtype=torch.float8_e4m3fn),
    "fp8 cache, split": Case(rows=DECODES, cache_dtype=torch.float8_e4m3fn, tiling=SPLIT),
    "fp8 cache, bfloat16": Case(dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn),
}


class Step:
    """A case's random numbers: queries, and a cache filled by the store kernel in scattered blocks."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(7)
        num_heads, num_kv_heads, head_size = case.shape
        size = case.block_size
        self.scales = SCALES if case.cache_dtype else {}
        num_blocks = [-(-context // size) for _, context in case.rows]
        order = (torch.randperm(sum(num_blocks), generator=generator) + 1).tolist()
        # Past a row's blocks stands what no cache has: reading it would be seen.
        table = torch.full((len(case.rows), max(num_blocks)), 1 << 20, dtype=torch.int32)
        num_slots = (1 + sum(num_blocks)) * size
        dtype = case.cache_dtype or case.dtype
        self.keys_KSD = poisoned(num_kv_heads, num_slots, head_size, dtype=dtype)
        self.values_KSD = self.keys_KSD.clone()
        self.slots: list[Tensor] = []
        for row, (_, context) in enumerate(case.rows):
            blocks = torch.tensor([order.pop() for _ in range(num_blocks[row])])
            table[row, : len(blocks)] = blocks
            self.slots.append((blocks[:, None] * size + torch.arange(size)).flatten()[:context])
            self._store(case, context, self.slots[-1], generator)
        self.query_lens = [queries for queries, _ in case.rows]
        heads = num_heads + 2 * num_kv_heads
        qkv = torch.randn(sum(self.query_lens), heads, head_size, generator=generator)
        # A view, as the projection's result is cut.
        self.q_TND = qkv.to(case.dtype).to(DEVICE)[:, :num_heads]
        tiles = [
            (row, first)
            for row, queries in enumerate(self.query_lens)
            for first in range(0, queries, case.tiling.queries)
        ]
        offsets = torch.tensor([0, *self.query_lens]).cumsum(0)
        self.step = PagedStep(
            query_offsets=offsets.int().to(DEVICE),
            seq_lens=torch.tensor([context for _, context in case.rows]).int().to(DEVICE),
            block_table=table.to(DEVICE),
            tiles=torch.tensor(tiles, dtype=torch.int32).to(DEVICE),
            block_size=size,
        )

    def _store(self, case: Case, context: int, slots_T: Tensor, generator: torch.Generator) -> None:
        _, num_kv_heads, head_size = case.shape
        shape = (context, num_kv_heads, head_size)
        k, v = (torch.randn(shape, generator=generator).to(case.dtype).to(DEVICE) for _ in "kv")
        store_keys_and_values(
            k,
            v,
            slots_T=slots_T.to(DEVICE),
            keys_KSD=self.keys_KSD,
            values_KSD=self.values_KSD,
            **self.scales,
        )

    def expected(self, case: Case) -> Tensor:
        """Naive attention over what stands in the cache, in float64."""
        parts: list[Tensor] = []
        queries = self.q_TND.cpu().double().split(self.query_lens)
        for q_LND, slots in zip(queries, self.slots, strict=True):
            k, v = (
                cache.cpu()[:, slots].double().transpose(0, 1) * self.scales.get(name, 1.0)
                for cache, name in ((self.keys_KSD, "k_scale"), (self.values_KSD, "v_scale"))
            )
            group = case.shape[0] // case.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.einsum("lnd,cnd->nlc", q_LND, k) * case.shape[2] ** -0.5
            if case.soft_cap:
                scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
            at = torch.arange(len(q_LND))[:, None] + len(slots) - len(q_LND)
            columns = torch.arange(len(slots))
            visible = columns <= at
            if case.window:
                visible &= columns > at - case.window
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            parts.append(torch.einsum("nlc,cnd->lnd", weights, v))
        return torch.cat(parts)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_equals_the_reference(case: Case) -> None:
    """Prompts, chunks behind a context and decodes in one launch; poisoned memory never shows."""
    step = Step(case)
    out_TND = poisoned(*step.q_TND.shape, dtype=case.dtype)
    before = num_launches().get("paged_attention", 0)
    attend_paged(
        step.q_TND,
        keys_KSD=step.keys_KSD,
        values_KSD=step.values_KSD,
        step=step.step,
        scores=Scores(
            scale=case.shape[2] ** -0.5,
            window=case.window,
            soft_cap=case.soft_cap,
            **step.scales,
        ),
        tiling=case.tiling,
        out_TND=out_TND,
    )
    assert num_launches()["paged_attention"] == before + 1
    tolerance = 1e-5 if case.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(out_TND.cpu().double(), step.expected(case), rtol=0, atol=tolerance)


@pytest.mark.parametrize("head_size", [16, 40])
@pytest.mark.parametrize(
    "cache_dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
)
def test_store_equals_the_reference(cache_dtype: torch.dtype, head_size: int) -> None:
    """Also of views and of what is too large; the slot -1 takes nothing.

    The numbers are such that no type has to round, which the interpreter does in its own ways.
    """
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randint(-16, 17, (7, 8, head_size), generator=generator) * 0.25
    qkv[3] *= 1 << 12
    qkv = qkv.to(DEVICE)
    k, v = qkv[:, 4:6], qkv[:, 6:]
    slots = torch.tensor([3, -1, 0, 9, -1, 4, 11]).to(DEVICE)
    caches = [poisoned(2, 12, head_size, dtype=cache_dtype) for _ in range(4)]
    for store, keys, values in (
        (store_keys_and_values, *caches[:2]),
        (store_reference, *caches[2:]),
    ):
        store(k, v, slots_T=slots, keys_KSD=keys, values_KSD=values, k_scale=0.25, v_scale=0.125)
    for stored, expected in zip(caches[:2], caches[2:], strict=True):
        torch.testing.assert_close(stored.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


def test_integers_are_rounded_half_to_even() -> None:
    """As torch rounds, on both sides of 0."""
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 126.6]).to(DEVICE).view(1, 1, 8)
    keys, values = poisoned(1, 1, 8, dtype=torch.int8), poisoned(1, 1, 8, dtype=torch.int8)
    slot = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    store_keys_and_values(x, x, slots_T=slot, keys_KSD=keys, values_KSD=values)
    assert keys.flatten().tolist() == [0, 2, 2, 0, -2, -2, 0, 127]
    assert torch.equal(keys, values)
