"""Paged attention in plain torch: the reference, on any device.

Legend: T tokens of the step, N query heads, K key heads, G = N / K, S slots, R decode rows, n rows
of a tile, L queries of a chunk, M = G * L, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.attention.metadata import AttentionMetadata
from worker_service.attention.partial_softmax import Partial, attend_part, scaled_scores
from worker_service.attention.torch_plan import (
    MASKED,
    QUERY_BLOCK,
    Chunk,
    Decodes,
    DecodeTile,
    TileSizes,
    TorchPlan,
    plan_step,
)


class TorchBackend:
    """Gathers tiles of slots and multiplies; key heads are shared by their queries, never repeated."""

    name = "torch"

    def __init__(self, sizes: TileSizes | None = None) -> None:
        self._sizes = sizes or TileSizes()

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> TorchPlan:
        """Work out the step's slots and masks."""
        return plan_step(metadata, num_kv_heads=num_kv_heads, sizes=self._sizes)

    def store(
        self, plan: TorchPlan, *, k_TKD: Tensor, v_TKD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
    ) -> None:
        """Write the step's keys and values to their slots."""
        if plan.stored_T is not None:
            k_TKD, v_TKD = k_TKD[plan.stored_T], v_TKD[plan.stored_T]
        keys_KSD.index_copy_(1, plan.slots_T, k_TKD.transpose(0, 1))
        values_KSD.index_copy_(1, plan.slots_T, v_TKD.transpose(0, 1))

    def attend(
        self,
        plan: TorchPlan,
        *,
        q_TND: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        keys_KSD: Tensor,
        values_KSD: Tensor,
    ) -> Tensor:
        """Attend from every query to its row's tokens up to itself; contiguous [T, N, D]."""
        decodes = plan.decodes
        if decodes is not None and decodes.tokens_R is None:
            return _attend_decodes(decodes, q_TND, keys_KSD, values_KSD)
        out_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
        if decodes is not None and decodes.tokens_R is not None:
            q_RND = q_TND[decodes.tokens_R]
            out_TND[decodes.tokens_R] = _attend_decodes(decodes, q_RND, keys_KSD, values_KSD)
        for chunk in plan.chunks:
            tokens = slice(chunk.start, chunk.stop)
            q_NLD = q_TND[tokens].transpose(0, 1)
            if chunk.tiles:
                out_NLD = _attend_chunk(chunk, q_NLD, keys_KSD, values_KSD)
            else:
                out_NLD = _attend_prompt(q_NLD, k_TKD[tokens], v_TKD[tokens])
            out_TND[tokens] = out_NLD.transpose(0, 1)
        return out_TND


def _attend_decodes(
    decodes: Decodes, q_RND: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> Tensor:
    num_rows, num_heads, head_size = q_RND.shape
    num_kv_heads = keys_KSD.shape[0]
    q_KRGD = q_RND.reshape(num_rows, num_kv_heads, -1, head_size).transpose(0, 1)
    q_KRGD = q_KRGD.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    q_KRGD *= head_size**-0.5
    if len(decodes.tiles) == 1:
        scores, v = _decode_scores(decodes.tiles[0], q_KRGD, keys_KSD, values_KSD)
        out_KRGD = torch.bmm(scores.softmax(dim=-1), v).view(q_KRGD.shape)
    else:
        out_KRGD = _merge_decode_tiles(decodes.tiles, q_KRGD, keys_KSD, values_KSD)
    return out_KRGD.transpose(0, 1).reshape(num_rows, num_heads, head_size).to(q_RND.dtype)


def _decode_scores(
    tile: DecodeTile, q_KRGD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores [K * n, G, S] of the tile and its values [K * n, S, D]."""
    num_kv_heads, _, group_size, head_size = q_KRGD.shape
    batch = num_kv_heads * tile.num_rows
    k = keys_KSD.index_select(1, tile.slots_F).view(batch, -1, head_size).float()
    v = values_KSD.index_select(1, tile.slots_F).view(batch, -1, head_size).float()
    q = q_KRGD[:, : tile.num_rows].reshape(batch, group_size, head_size)
    return scaled_scores(q, k, tile.bias), v


def _merge_decode_tiles(
    tiles: tuple[DecodeTile, ...], q_KRGD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> Tensor:
    """Attend over tiles, each of which holds as many of the first rows as reach into it."""
    out_KRGD = torch.zeros_like(q_KRGD)
    lse_KRG1 = torch.full_like(q_KRGD[..., :1], MASKED)
    for tile in tiles:
        part = attend_part(*_decode_scores(tile, q_KRGD, keys_KSD, values_KSD))
        rows = (slice(None), slice(tile.num_rows))
        before = Partial(out_KRGD[rows], lse_KRG1[rows])
        after = before.merge(Partial(part.out.view_as(before.out), part.lse.view_as(before.lse)))
        out_KRGD[rows], lse_KRG1[rows] = after.out, after.lse
    return out_KRGD


def _attend_prompt(q_NLD: Tensor, k_LKD: Tensor, v_LKD: Tensor) -> Tensor:
    """Causal attention among the step's own tokens: nothing of the row was cached before."""
    return functional.scaled_dot_product_attention(
        q_NLD[None],
        k_LKD.transpose(0, 1)[None],
        v_LKD.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0]


def _attend_chunk(chunk: Chunk, q_NLD: Tensor, keys_KSD: Tensor, values_KSD: Tensor) -> Tensor:
    """Attend behind a cached context, block of queries by block of queries."""
    blocks = [
        range(begin, min(begin + QUERY_BLOCK, q_NLD.shape[1]))
        for begin in range(0, q_NLD.shape[1], QUERY_BLOCK)
    ]
    first, *others = chunk.tiles
    if others:
        return _attend_long_chunk(chunk, blocks, q_NLD, keys_KSD, values_KSD)
    k_KSD, v_KSD = keys_KSD.index_select(1, first), values_KSD.index_select(1, first)
    return torch.cat(
        [_attend_block(chunk, queries, q_NLD, k_KSD, v_KSD) for queries in blocks], dim=1
    )


def _attend_block(
    chunk: Chunk, queries: range, q_NLD: Tensor, k_KSD: Tensor, v_KSD: Tensor
) -> Tensor:
    num_visible = chunk.num_cached + queries.stop
    return functional.scaled_dot_product_attention(
        q_NLD[None, :, queries.start : queries.stop],
        k_KSD[None, :, :num_visible],
        v_KSD[None, :, :num_visible],
        attn_mask=_is_visible(chunk, queries, range(num_visible), device=q_NLD.device),
        enable_gqa=True,
    )[0]


def _is_visible(chunk: Chunk, queries: range, columns: range, *, device: torch.device) -> Tensor:
    """Which context columns each query may see, its own included; bool [queries, columns]."""
    columns_S = torch.arange(columns.start, columns.stop, device=device)
    queries_L1 = torch.arange(queries.start, queries.stop, device=device)[:, None]
    return columns_S <= queries_L1 + chunk.num_cached


def _attend_long_chunk(
    chunk: Chunk, blocks: list[range], q_NLD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> Tensor:
    """Attend over several tiles, each gathered once for all blocks of queries that see some of it."""
    num_kv_heads, _, head_size = keys_KSD.shape
    parts: dict[range, Partial] = {}
    begin = 0
    for slots_S in chunk.tiles:
        columns = range(begin, begin + len(slots_S))
        begin = columns.stop
        k_KSD = keys_KSD.index_select(1, slots_S).float()
        v_KSD = values_KSD.index_select(1, slots_S).float()
        for queries in blocks:
            if columns.start >= chunk.num_cached + queries.stop:
                continue
            q = q_NLD[:, queries.start : queries.stop].float() * head_size**-0.5
            scores = scaled_scores(q.reshape(num_kv_heads, -1, head_size), k_KSD, None)
            if columns.stop > chunk.num_cached + queries.start + 1:
                is_visible = _is_visible(chunk, queries, columns, device=q_NLD.device)
                scores.view(num_kv_heads, -1, *is_visible.shape).masked_fill_(~is_visible, MASKED)
            part = attend_part(scores, v_KSD)
            parts[queries] = parts[queries].merge(part) if queries in parts else part
    out = [parts[queries].out.view(len(q_NLD), len(queries), head_size) for queries in blocks]
    return torch.cat(out, dim=1).to(q_NLD.dtype)
