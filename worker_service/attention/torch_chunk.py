"""Attention of one row's several queries: a whole prompt, or a chunk behind a cached context.

Legend: N query heads, K key heads, G = N / K, L queries, M = G * L, S slots, D head size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from worker_service.attention.partial_softmax import Partial, attend_part, scaled_scores
from worker_service.attention.torch_plan import Chunk

QUERY_BLOCK = 256
"""Queries that share a mask; bounds the mask and skips what none of them may see."""

MASKED = -1e30
"""Score of what must not be seen: finite, so that a wholly masked tile merges with weight zero."""


def attend_prompt(q_NLD: Tensor, k_LKD: Tensor, v_LKD: Tensor) -> Tensor:
    """Attend causally among the step's own tokens, which are all the row has; [N, L, D]."""
    return functional.scaled_dot_product_attention(
        q_NLD[None],
        k_LKD.transpose(0, 1)[None],
        v_LKD.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0]


def attend_chunk(chunk: Chunk, q_NLD: Tensor, keys_KSD: Tensor, values_KSD: Tensor) -> Tensor:
    """Attend to the cached context and causally to the chunk itself; [N, L, D]."""
    num_queries = q_NLD.shape[1]
    blocks = [
        range(start, min(start + QUERY_BLOCK, num_queries))
        for start in range(0, num_queries, QUERY_BLOCK)
    ]
    attend = _attend_tile if len(chunk.tiles) == 1 else _attend_tiles
    return torch.cat(attend(chunk, blocks, q_NLD, keys_KSD, values_KSD), dim=1)


def _attend_tile(
    chunk: Chunk, blocks: list[range], q_NLD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> list[Tensor]:
    """Attend to a context that is one tile; a result [N, block, D] per block of queries."""
    (slots_S,) = chunk.tiles
    k_KSD, v_KSD = keys_KSD.index_select(1, slots_S), values_KSD.index_select(1, slots_S)
    results: list[Tensor] = []
    for queries in blocks:
        visible = range(chunk.num_cached + queries.stop)
        out_1NLD = functional.scaled_dot_product_attention(
            q_NLD[None, :, queries.start : queries.stop],
            k_KSD[None, :, : visible.stop],
            v_KSD[None, :, : visible.stop],
            attn_mask=_is_visible(chunk, queries, visible, device=q_NLD.device),
            enable_gqa=True,
        )
        results.append(out_1NLD[0])
    return results


def _attend_tiles(
    chunk: Chunk, blocks: list[range], q_NLD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> list[Tensor]:
    """Attend to each tile, gathered once for all blocks that see some of it, and merge."""
    num_heads, _, head_size = q_NLD.shape
    parts: dict[range, Partial] = {}
    start = 0
    for slots_S in chunk.tiles:
        columns = range(start, start + len(slots_S))
        start = columns.stop
        k_KSD = keys_KSD.index_select(1, slots_S).float()
        v_KSD = values_KSD.index_select(1, slots_S).float()
        for queries in blocks:
            if columns.start < chunk.num_cached + queries.stop:
                part = attend_part(_scores(chunk, queries, columns, q_NLD, k_KSD), v_KSD)
                parts[queries] = parts[queries].merge(part) if queries in parts else part
    return [
        parts[queries].out.view(num_heads, len(queries), head_size).to(q_NLD.dtype)
        for queries in blocks
    ]


def _scores(chunk: Chunk, queries: range, columns: range, q_NLD: Tensor, k_KSD: Tensor) -> Tensor:
    """Scores of a block of queries for a tile of columns, float32 [K, M, S]."""
    num_kv_heads, _, head_size = k_KSD.shape
    q_NLD = q_NLD[:, queries.start : queries.stop].float() * head_size**-0.5
    scores_KMS = scaled_scores(q_NLD.reshape(num_kv_heads, -1, head_size), k_KSD, None)
    if columns.stop > chunk.num_cached + queries.start + 1:
        is_visible = _is_visible(chunk, queries, columns, device=q_NLD.device)
        scores_KGLS = scores_KMS.view(num_kv_heads, -1, *is_visible.shape)
        scores_KGLS.masked_fill_(~is_visible, MASKED)
    return scores_KMS


def _is_visible(chunk: Chunk, queries: range, columns: range, *, device: torch.device) -> Tensor:
    """Which columns of the context each query may see, its own included; bool [queries, columns]."""
    columns_S = torch.arange(columns.start, columns.stop, device=device)
    queries_L1 = torch.arange(queries.start, queries.stop, device=device)[:, None]
    return columns_S <= queries_L1 + chunk.num_cached
