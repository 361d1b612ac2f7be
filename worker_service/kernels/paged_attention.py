"""Causal attention over a paged KV cache: prompts, chunks behind a context, and decodes, in one kernel.

    scores[t, c] = cap(scale * q[t] . k[c]),  cap(x) = soft_cap * tanh(x / soft_cap)
    out[t] = sum over c of softmax(scores[t])[c] * v[c]

Token t of a row sees the context's tokens c <= t, with a sliding window of W only c > t - W. Softmax
is taken online over tiles of keys (Milakov and Gimelshein, arXiv:1805.02867; Dao, FlashAttention-2,
arXiv:2307.08691). Rows with few queries leave a GPU idle, so their context may be cut into splits,
each attended to by a program of its own, and merged by a second kernel (Flash-Decoding).

Keys and values may be 8-bit; they then count times k_scale and v_scale.

Legend: T tokens of the step, R rows (requests), B most blocks of a row, N query heads, K key heads,
G = N / K, S slots, D head size, P splits.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# Triton has no types of its own: a kernel is another language in the clothes of a function.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from worker_service.kernels.launches import count_launch
from worker_service.kernels.triton_dtypes import dot_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the work is cut: queries of a row and keys per tile, splits of a context, warps."""

    queries: int
    keys: int = 32
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedStep:
    """What the kernel reads of a step beside queries and cache.

    query_offsets int32 [R + 1]; seq_lens int32 [R], this step's tokens included; block_table int32
    [R, B]; tiles int32 [number of tiles, 2]: row, and its first query of the tile, counted within
    the row.
    """

    query_offsets: Tensor
    seq_lens: Tensor
    block_table: Tensor
    tiles: Tensor
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How scores are made: scale of products; window 0: no window; soft_cap 0: none."""

    scale: float
    window: int = 0
    soft_cap: float = 0.0
    k_scale: float = 1.0
    v_scale: float = 1.0


def attend_paged(
    q_TND: Tensor,
    *,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    step: PagedStep,
    scores: Scores,
    tiling: Tiling,
    out_TND: Tensor,
) -> None:
    """Write the attention of every query that a tile names; the others' rows are left alone."""
    num_tokens, num_heads, head_size = q_TND.shape
    num_kv_heads = keys_KSD.shape[0]
    group = num_heads // num_kv_heads
    num_splits = tiling.splits
    if num_splits == 1:
        partial_TNPD, lse_TNP = out_TND, out_TND
    else:
        shape = (num_tokens, num_heads, num_splits)
        partial_TNPD = torch.empty((*shape, head_size), dtype=torch.float32, device=q_TND.device)
        lse_TNP = torch.empty(shape, dtype=torch.float32, device=q_TND.device)
    count_launch("paged_attention")
    attend_kernel[(len(step.tiles), num_kv_heads, num_splits)](
        q_TND,
        keys_KSD,
        values_KSD,
        step.block_table,
        step.query_offsets,
        step.seq_lens,
        step.tiles,
        partial_TNPD,
        lse_TNP,
        scores.scale * scores.k_scale,
        scores.soft_cap,
        scores.v_scale,
        q_TND.stride(0),
        q_TND.stride(1),
        keys_KSD.stride(0),
        step.block_table.stride(0),
        num_heads,
        GROUP=group,
        GROUP_PADDED=triton.next_power_of_2(group),
        HEAD_SIZE=head_size,
        HEAD_PADDED=max(16, triton.next_power_of_2(head_size)),
        BLOCK_SIZE=step.block_size,
        QUERIES=tiling.queries,
        KEYS=tiling.keys,
        NUM_SPLITS=num_splits,
        WINDOW=scores.window,
        HAS_CAP=scores.soft_cap > 0,
        DOT=dot_dtype(q_TND),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if num_splits > 1:
        count_launch("merge_splits")
        merge_kernel[(len(step.tiles) * tiling.queries, num_heads)](
            partial_TNPD,
            lse_TNP,
            step.query_offsets,
            step.tiles,
            out_TND,
            num_heads,
            HEAD_SIZE=head_size,
            HEAD_PADDED=triton.next_power_of_2(head_size),
            QUERIES=tiling.queries,
            NUM_SPLITS=num_splits,
            SPLITS_PADDED=triton.next_power_of_2(num_splits),
            num_warps=1,
        )


@triton.jit
def attend_kernel(
    q_ptr,  # [T, N, D], D contiguous
    keys_ptr,  # [K, S, D], slots and D contiguous
    values_ptr,  # [K, S, D], as the keys
    table_ptr,  # int32 [R, B]
    offsets_ptr,  # int32 [R + 1]
    seq_lens_ptr,  # int32 [R]
    tiles_ptr,  # int32 [tiles, 2]
    out_ptr,  # [T, N, D], or float32 [T, N, P, D]
    lse_ptr,  # float32 [T, N, P], unused with one split
    scale,
    soft_cap,
    v_scale,
    q_stride_t,
    q_stride_n,
    cache_stride_k,
    table_stride_r,
    num_heads,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    DOT: tl.constexpr,
):
    """One tile of a row's queries, for the query heads of one key head, over one split."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(tiles_ptr + 2 * tile)
    first_query = tl.load(tiles_ptr + 2 * tile + 1)
    start = tl.load(offsets_ptr + row)
    num_queries = tl.load(offsets_ptr + row + 1) - start
    num_cached = tl.load(seq_lens_ptr + row) - num_queries

    # Rows of the tile: query after query, each with the heads of the group.
    index = tl.arange(0, QUERIES * GROUP_PADDED)
    query = first_query + index // GROUP_PADDED
    head = index % GROUP_PADDED
    is_row = (query < num_queries) & (head < GROUP)
    d = tl.arange(0, HEAD_PADDED)
    is_d = d < HEAD_SIZE
    q_row = (start + query).to(tl.int64) * q_stride_t + (kv_head * GROUP + head) * q_stride_n
    q = tl.load(
        q_ptr + q_row[:, None] + d[None, :], mask=is_row[:, None] & is_d[None, :], other=0.0
    ).to(DOT)

    position = num_cached + query
    context_end = num_cached + tl.minimum(first_query + QUERIES, num_queries)
    context_start = 0
    if WINDOW > 0:
        context_start = tl.maximum(num_cached + first_query - WINDOW + 1, 0)
    first_tile = context_start // KEYS
    end_tile = tl.cdiv(context_end, KEYS)
    per_split = tl.cdiv(end_tile - first_tile, NUM_SPLITS)
    split_start = first_tile + split * per_split
    split_end = tl.minimum(split_start + per_split, end_tile)

    maximum = tl.full([QUERIES * GROUP_PADDED], float("-inf"), dtype=tl.float32)
    total = tl.zeros([QUERIES * GROUP_PADDED], dtype=tl.float32)
    acc = tl.zeros([QUERIES * GROUP_PADDED, HEAD_PADDED], dtype=tl.float32)
    for key_tile in range(split_start, split_end):
        column = key_tile * KEYS + tl.arange(0, KEYS)
        is_column = column < context_end
        block = tl.load(
            table_ptr + row * table_stride_r + column // BLOCK_SIZE, mask=is_column, other=0
        )
        slot = block.to(tl.int64) * BLOCK_SIZE + column % BLOCK_SIZE
        k = tl.load(
            keys_ptr + kv_head * cache_stride_k + slot[None, :] * HEAD_SIZE + d[:, None],
            mask=is_column[None, :] & is_d[:, None],
            other=0.0,
        )
        s = tl.dot(q, k.to(DOT), input_precision="ieee") * scale
        if HAS_CAP:
            # tanh by exp, stable for large arguments of either sign.
            e = tl.exp(-2.0 * tl.abs(s) / soft_cap)
            capped = soft_cap * (1.0 - e) / (1.0 + e)
            s = tl.where(s < 0, -capped, capped)
        is_visible = column[None, :] <= position[:, None]
        if WINDOW > 0:
            is_visible = is_visible & (column[None, :] > position[:, None] - WINDOW)
        s = tl.where(is_visible & is_column[None, :], s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        # A query may see nothing of a tile, and then nothing at all so far.
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        kept = tl.exp(maximum - base)
        p = tl.exp(s - base[:, None])
        v = tl.load(
            values_ptr + kv_head * cache_stride_k + slot[:, None] * HEAD_SIZE + d[None, :],
            mask=is_column[:, None] & is_d[None, :],
            other=0.0,
        )
        total = total * kept + tl.sum(p, axis=1)
        acc = acc * kept[:, None] + tl.dot(p.to(DOT), v.to(DOT), input_precision="ieee")
        maximum = new_maximum

    out = acc * v_scale / tl.where(total == 0.0, 1.0, total)[:, None]
    out_row = (start + query).to(tl.int64) * num_heads + kv_head * GROUP + head
    is_out = is_row[:, None] & is_d[None, :]
    if NUM_SPLITS == 1:
        out_at = out_ptr + out_row[:, None] * HEAD_SIZE + d[None, :]
        tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=is_out)
    else:
        part_row = out_row * NUM_SPLITS + split
        tl.store(out_ptr + part_row[:, None] * HEAD_SIZE + d[None, :], out, mask=is_out)
        lse = maximum + tl.log(tl.where(total == 0.0, 1.0, total))
        tl.store(lse_ptr + part_row, lse, mask=is_row)


@triton.jit
def merge_kernel(
    partial_ptr,  # float32 [T, N, P, D]
    lse_ptr,  # float32 [T, N, P]
    offsets_ptr,  # int32 [R + 1]
    tiles_ptr,  # int32 [tiles, 2]
    out_ptr,  # [T, N, D]
    num_heads,
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    """The splits of one query and head, weighted by the mass of their scores."""
    tile = tl.program_id(0) // QUERIES
    row = tl.load(tiles_ptr + 2 * tile)
    query = tl.load(tiles_ptr + 2 * tile + 1) + tl.program_id(0) % QUERIES
    start = tl.load(offsets_ptr + row)
    if query >= tl.load(offsets_ptr + row + 1) - start:
        return
    out_row = (start + query).to(tl.int64) * num_heads + tl.program_id(1)
    p = tl.arange(0, SPLITS_PADDED)
    d = tl.arange(0, HEAD_PADDED)
    is_d = d < HEAD_SIZE
    lse = tl.load(lse_ptr + out_row * NUM_SPLITS + p, mask=p < NUM_SPLITS, other=float("-inf"))
    # A split of which the query sees nothing has the mass 0; one split at least has some.
    weight = tl.exp(lse - tl.max(lse, axis=0))
    part = tl.load(
        partial_ptr + (out_row * NUM_SPLITS + p)[:, None] * HEAD_SIZE + d[None, :],
        mask=(p < NUM_SPLITS)[:, None] & is_d[None, :],
        other=0.0,
    )
    out = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out_ptr + out_row * HEAD_SIZE + d, out.to(out_ptr.dtype.element_ty), mask=is_d)
