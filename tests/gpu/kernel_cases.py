"""Every Triton kernel on work of a model's shape, beside the same work in torch.

Legend: T tokens, N query heads, K key heads, D head size, R rows, C context, S slots, E experts,
I and O a matmul's inputs and outputs, V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.kernels.draw import draw_tokens_reference
from worker_service.kernels.draw_triton import draw_tokens_triton
from worker_service.kernels.gate_triton import gate_triton
from worker_service.kernels.gated_activation import silu_and_multiply_reference
from worker_service.kernels.grouped_matmul import (
    grouped_matmul,
    grouped_matmul_reference,
    sort_by_group,
)
from worker_service.kernels.input_prep import TokenInputs, gather_inputs, gather_inputs_reference
from worker_service.kernels.kv_store import store_keys_and_values, store_reference
from worker_service.kernels.lora_matmul import add_lora
from worker_service.kernels.norm import rms_norm_reference
from worker_service.kernels.norm_rope import rms_norm_triton, rotate_triton
from worker_service.kernels.paged_attention import PagedStep, Scores, Tiling, attend_paged
from worker_service.kernels.rotary import Rotation, rotate

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much work a case is."""

    tokens: int
    heads: int
    kv_heads: int
    head_size: int
    rows: int
    context: int
    experts: int
    inputs: int
    outputs: int
    vocabulary: int


FULL = Sizes(
    tokens=2048,
    heads=32,
    kv_heads=8,
    head_size=128,
    rows=64,
    context=2048,
    experts=8,
    inputs=4096,
    outputs=4096,
    vocabulary=128256,
)
TINY = Sizes(
    tokens=9,
    heads=4,
    kv_heads=2,
    head_size=16,
    rows=3,
    context=35,
    experts=3,
    inputs=40,
    outputs=50,
    vocabulary=1500,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """Two ways to the same tensor, and the bytes and operations the work cannot do without."""

    name: str
    by_kernel: Callable[[], Tensor]
    by_torch: Callable[[], Tensor]
    num_bytes: float
    flops: float = 0.0


class KernelCases:
    """Makes the cases of one size, seeded, on a device and in a floating-point type."""

    def __init__(self, sizes: Sizes, *, device: torch.device, dtype: torch.dtype) -> None:
        self._sizes = sizes
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(5)

    def __iter__(self) -> Iterator[KernelCase]:
        """One after the other, so that only one case's tensors are in memory."""
        sizes = self._sizes
        yield self._attention("paged attention, decode", rows=sizes.rows, queries=1)
        yield self._attention("paged attention, prefill", rows=1, queries=sizes.context)
        yield self._store()
        yield self._norm()
        yield self._rotation()
        yield self._gate()
        yield self._experts()
        yield self._lora()
        yield self._input_prep()
        yield self._sampling()

    def _random(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._generator, device=self._device)
        return values.to(self._dtype)

    def _integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator, device=self._device)

    def _attention(self, name: str, *, rows: int, queries: int) -> KernelCase:
        sizes, device = self._sizes, self._device
        num_heads, num_kv_heads, head_size = sizes.heads, sizes.kv_heads, sizes.head_size
        blocks_per_row = -(-sizes.context // BLOCK_SIZE)
        order_B = torch.randperm(rows * blocks_per_row, generator=self._generator, device=device)
        table_RB = (order_B + 1).view(rows, blocks_per_row)
        cache = (num_kv_heads, (rows * blocks_per_row + 1) * BLOCK_SIZE, head_size)
        keys_KSD, values_KSD = self._random(*cache), self._random(*cache)
        q_TND = self._random(rows * queries, num_heads, head_size)
        tile = 16 if queries > 1 else 4
        starts = torch.arange(0, queries, tile, device=device)
        tiles = torch.cartesian_prod(torch.arange(rows, device=device), starts)
        step = PagedStep(
            query_offsets=torch.arange(rows + 1, device=device, dtype=torch.int32) * queries,
            seq_lens=torch.full((rows,), sizes.context, device=device, dtype=torch.int32),
            block_table=table_RB.int(),
            tiles=tiles.view(-1, 2).int(),
            block_size=BLOCK_SIZE,
        )
        tiling = Tiling(queries=tile, splits=1 if queries > 1 else 4)
        out_TND = torch.empty_like(q_TND)
        scale = head_size**-0.5

        def by_kernel() -> Tensor:
            attend_paged(
                q_TND,
                keys_KSD=keys_KSD,
                values_KSD=values_KSD,
                step=step,
                scores=Scores(scale=scale),
                tiling=tiling,
                out_TND=out_TND,
            )
            return out_TND

        def by_torch() -> Tensor:
            offsets = torch.arange(BLOCK_SIZE, device=device)
            slots_RC = (table_RB[:, :, None] * BLOCK_SIZE + offsets).flatten(1)[:, : sizes.context]
            k, v = (x[:, slots_RC].transpose(0, 1) for x in (keys_KSD, values_KSD))
            q = q_TND.view(rows, queries, num_heads, head_size).transpose(1, 2)
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=queries > 1, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(q_TND.shape)

        seen = rows * (sizes.context if queries == 1 else queries * (queries + 1) / 2)
        num_bytes = 2 * rows * sizes.context * num_kv_heads * head_size + 2 * q_TND.numel()
        return KernelCase(
            name=name,
            by_kernel=by_kernel,
            by_torch=by_torch,
            num_bytes=num_bytes * self._dtype.itemsize,
            flops=4 * seen * num_heads * head_size,
        )

    def _store(self) -> KernelCase:
        sizes = self._sizes
        shape = (sizes.tokens, sizes.kv_heads, sizes.head_size)
        k, v = self._random(*shape), self._random(*shape)
        slots = torch.randperm(sizes.tokens, generator=self._generator, device=self._device)
        size = (sizes.kv_heads, sizes.tokens, sizes.head_size)
        mine, theirs = (
            torch.zeros((2, *size), dtype=self._dtype, device=self._device) for _ in range(2)
        )

        def run(store: Callable[..., None], cache: Tensor) -> Tensor:
            store(k, v, slots_T=slots, keys_KSD=cache[0], values_KSD=cache[1])
            return cache

        return KernelCase(
            name="KV store",
            by_kernel=lambda: run(store_keys_and_values, mine),
            by_torch=lambda: run(store_reference, theirs),
            num_bytes=2 * (k.nbytes + v.nbytes) + slots.nbytes,
        )

    def _norm(self) -> KernelCase:
        x, weight = (
            self._random(self._sizes.tokens, self._sizes.inputs),
            self._random(self._sizes.inputs),
        )
        return KernelCase(
            name="RMS norm",
            by_kernel=lambda: rms_norm_triton(x, weight, eps=1e-6),
            by_torch=lambda: rms_norm_reference(x, weight, eps=1e-6),
            num_bytes=2 * x.nbytes + weight.nbytes,
        )

    def _rotation(self) -> KernelCase:
        sizes = self._sizes
        mine = self._random(sizes.tokens, sizes.heads, sizes.head_size)
        theirs = mine.clone()
        angles = self._random(sizes.tokens, 1, sizes.head_size // 2).float()
        cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        rotation = Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))

        def by_kernel() -> Tensor:
            rotate_triton(mine, rotation.cos_T1D, rotation.sin_T1D)
            return mine

        return KernelCase(
            name="rotary embedding",
            by_kernel=by_kernel,
            by_torch=lambda: rotate(theirs, rotation),
            num_bytes=2 * mine.nbytes + cos.nbytes + sin.nbytes,
        )

    def _gate(self) -> KernelCase:
        x = self._random(self._sizes.tokens, 2 * self._sizes.inputs)
        return KernelCase(
            name="gated activation",
            by_kernel=lambda: gate_triton(x),
            by_torch=lambda: silu_and_multiply_reference(x),
            num_bytes=1.5 * x.nbytes,
        )

    def _experts(self) -> KernelCase:
        sizes = self._sizes
        x = self._random(sizes.tokens, sizes.inputs)
        w = self._random(sizes.experts, sizes.outputs, sizes.inputs) * sizes.inputs**-0.5
        groups = self._integers(0, sizes.experts, 2 * sizes.tokens)
        pairs = sort_by_group(groups, num_groups=sizes.experts)
        return KernelCase(
            name="grouped MoE matmul",
            by_kernel=lambda: grouped_matmul(x, w, pairs, pairs_per_row=2),
            by_torch=lambda: grouped_matmul_reference(x, w, groups, pairs_per_row=2),
            num_bytes=x.nbytes + w.nbytes + 2 * sizes.tokens * sizes.outputs * x.itemsize,
            flops=4 * sizes.tokens * sizes.outputs * sizes.inputs,
        )

    def _lora(self, rank: int = 16) -> KernelCase:
        sizes = self._sizes
        x, y = self._random(sizes.tokens, sizes.inputs), self._random(sizes.tokens, sizes.outputs)
        a = self._random(sizes.experts, rank, sizes.inputs) * sizes.inputs**-0.5
        b = self._random(sizes.experts, sizes.outputs, rank) * 0.1
        scale = torch.ones(sizes.tokens, device=self._device)
        adapters = self._integers(0, sizes.experts, sizes.tokens)
        pairs = sort_by_group(adapters, num_groups=sizes.experts)

        def by_kernel() -> Tensor:
            out = y.clone()
            add_lora(out, x, a_EZI=a, b_EOZ=b, scale_T=scale, pairs=pairs)
            return out

        def by_torch() -> Tensor:
            out = y.clone()
            for adapter in range(sizes.experts):
                (chosen,) = (adapters == adapter).nonzero(as_tuple=True)
                down = x[chosen].float() @ a[adapter].float().T
                out[chosen] += (down @ b[adapter].float().T).to(out.dtype)
            return out

        return KernelCase(
            name="LoRA matmul, with the copy of its output",
            by_kernel=by_kernel,
            by_torch=by_torch,
            num_bytes=x.nbytes + 4 * y.nbytes + a.nbytes + b.nbytes,
            flops=2 * sizes.tokens * rank * (sizes.inputs + sizes.outputs),
        )

    def _input_prep(self) -> KernelCase:
        sizes, device = self._sizes, self._device
        rows, width = sizes.rows, sizes.context
        arguments = (
            torch.arange(rows, device=device),
            torch.full((rows,), width - 1, device=device, dtype=torch.int32),
            torch.arange(rows + 1, device=device, dtype=torch.int32),
        )
        tables = {
            "tokens_QW": self._integers(0, sizes.vocabulary, rows, width).int(),
            "blocks_QB": self._integers(0, 999, rows, -(-width // BLOCK_SIZE)).int(),
        }
        mine, theirs = (TokenInputs.empty(rows, device) for _ in range(2))

        def by_kernel() -> Tensor:
            gather_inputs(*arguments, **tables, block_size=BLOCK_SIZE, max_query_len=1, out=mine)
            return torch.stack((mine.token_ids, mine.positions, mine.slot_mapping))

        def by_torch() -> Tensor:
            gather_inputs_reference(*arguments, **tables, block_size=BLOCK_SIZE, out=theirs)
            return torch.stack((theirs.token_ids, theirs.positions, theirs.slot_mapping))

        return KernelCase(
            name="input preparation",
            by_kernel=by_kernel,
            by_torch=by_torch,
            num_bytes=rows * (3 * 8 + 8 + 4 + 4 + 4 + 4),
        )

    def _sampling(self) -> KernelCase:
        rows, device = self._sizes.rows, self._device
        logits = self._random(rows, self._sizes.vocabulary).float() * 3
        columns = {
            "temperature_R": torch.ones(rows, device=device),
            "min_p_R": torch.zeros(rows, device=device),
            "seeds_R": self._integers(0, 1 << 60, rows),
            "positions_R": self._integers(0, 5000, rows),
        }
        return KernelCase(
            name="sampling",
            by_kernel=lambda: draw_tokens_triton(logits, **columns),
            by_torch=lambda: draw_tokens_reference(logits, **columns),
            num_bytes=logits.nbytes,
        )
