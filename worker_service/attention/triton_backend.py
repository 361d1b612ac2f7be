"""Paged attention by Triton kernels: rotate, store, attend, each for all rows of a step at once.

Legend: T tokens of the step, R rows, N query heads, K key heads, H = N + 2K, S slots, D head size.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.metadata import AttentionMetadata
from worker_service.kernels.kv_store import store_keys_and_values
from worker_service.kernels.norm_rope import rotate_triton
from worker_service.kernels.paged_attention import PagedStep, Scores, Tiling, attend_paged
from worker_service.kernels.rotary import Rotation

_TILE_ROWS = 64
"""Rows of a tile of queries: one for each query and head of the group."""
_DECODE_QUERIES = 4
"""Rows with at most so many queries are decodes, with drafts perhaps: their contexts are split."""
_KEYS = 32
_KEYS_PER_SPLIT = 512
_MOST_SPLITS = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Rows that are attended to by one launch."""

    step: PagedStep
    tiling: Tiling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TritonPlan:
    """What all layers of a step share."""

    metadata: AttentionMetadata
    parts: tuple[_Part, ...]


class TritonBackend:
    """Every shape of row in one kernel; decodes apart, as they are cut otherwise."""

    name = "triton"
    has_static_plans = True

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> TritonPlan:
        """Cut the rows into tiles of queries, on the host."""
        query_lens = np.array(metadata.query_lens_host)
        is_decode = query_lens <= _DECODE_QUERIES
        parts: list[_Part] = []
        for is_chosen, longest in ((is_decode, metadata.max_seq_len), (~is_decode, 0)):
            rows = np.flatnonzero(is_chosen)
            if len(rows):
                queries = _DECODE_QUERIES if longest else _TILE_ROWS // 4
                queries = min(queries, 1 << (int(query_lens[rows].max()) - 1).bit_length())
                parts.append(_part(metadata, rows, query_lens, queries=queries, longest=longest))
        return TritonPlan(metadata=metadata, parts=tuple(parts))

    def attend(
        self,
        plan: TritonPlan,
        *,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        keys_KSD: Tensor,
        values_KSD: Tensor,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Rotate queries and keys in place, store keys and values, attend; dense [T, N, D]."""
        num_kv_heads, _, head_size = keys_KSD.shape
        num_heads = qkv_THD.shape[1] - 2 * num_kv_heads
        if rotation is not None:
            rotate_triton(
                qkv_THD[:, : num_heads + num_kv_heads], rotation.cos_T1D, rotation.sin_T1D
            )
        q_TND, k_TKD, v_TKD = qkv_THD.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        store_keys_and_values(
            k_TKD,
            v_TKD,
            slots_T=plan.metadata.slot_mapping,
            keys_KSD=keys_KSD,
            values_KSD=values_KSD,
        )
        out_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
        for part in plan.parts:
            attend_paged(
                q_TND,
                keys_KSD=keys_KSD,
                values_KSD=values_KSD,
                step=part.step,
                scores=Scores(scale=head_size**-0.5, window=form.window, soft_cap=form.soft_cap),
                tiling=part.tiling,
                out_TND=out_TND,
            )
        return out_TND

    def native_step(
        self,
        plan: TritonPlan,
        *,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        rotation: Rotation | None,
        num_slots: int,
    ) -> None:
        """Native kernels have no part in this."""


def _part(
    metadata: AttentionMetadata,
    rows: "np.ndarray[tuple[int], np.dtype[np.intp]]",
    query_lens: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    *,
    queries: int,
    longest: int,
) -> _Part:
    num_tiles = -(-query_lens[rows] // queries)
    row_of_tile = np.repeat(rows, num_tiles)
    ends = num_tiles.cumsum()
    tile_in_row = np.arange(ends[-1]) - np.repeat(ends - num_tiles, num_tiles)
    tiles = np.stack((row_of_tile, tile_in_row * queries), axis=1).astype(np.int32)
    return _Part(
        step=PagedStep(
            query_offsets=metadata.query_offsets,
            seq_lens=metadata.seq_lens,
            block_table=metadata.block_table,
            tiles=torch.from_numpy(tiles).to(metadata.block_table.device),
            block_size=metadata.block_size,
        ),
        tiling=Tiling(
            queries=queries,
            keys=_KEYS,
            splits=max(1, min(_MOST_SPLITS, longest // _KEYS_PER_SPLIT)),
            num_warps=4 if longest else 8,
        ),
    )
