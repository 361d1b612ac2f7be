"""Plans a step for the torch backend: which slots each matmul reads, worked out once for all layers.

Rows with one query are decodes, batched over requests; rows with more are chunks, taken one by one.
Both read the cache in tiles of slots, so that memory and time follow the rows' lengths and never
the size of the cache.

Legend: R decode rows, n rows of a tile, F slots of a tile, K key heads, S slots per row of a tile.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from worker_service.attention.metadata import AttentionMetadata

MASKED = -1e30
"""Score of what must not be seen: finite, so that a wholly masked tile merges with weight zero."""

QUERY_BLOCK = 256
"""Queries of a chunk that share a mask; bounds the mask and skips what all of them must not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """Most slots gathered at once: over all decode rows together, and of one chunk's context."""

    decode: int = 8192
    chunk: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTile:
    """Some columns of context for the first num_rows decode rows.

    slots_F int64 [num_rows * S]; a row that is shorter repeats its last slot and is masked there by
    bias, float32 [K * num_rows, 1, S], which is None when no row is.
    """

    num_rows: int
    slots_F: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decodes:
    """The decode rows; tokens_R int64 says where they stand in the step, None: they are the step."""

    tokens_R: Tensor | None
    tiles: tuple[DecodeTile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One row's queries, tokens [start, stop) of the step, behind num_cached tokens of context.

    tiles are the slots of the whole context in order, each int64; empty when nothing was cached
    before, so that the step's own keys and values are all there is to see.
    """

    start: int
    stop: int
    num_cached: int
    tiles: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchPlan:
    """What all layers of a step share.

    slots_T int64 are the slots to store to; stored_T int64 the tokens to store, None: all.
    """

    slots_T: Tensor
    stored_T: Tensor | None
    decodes: Decodes | None
    chunks: tuple[Chunk, ...]


def plan_step(metadata: AttentionMetadata, *, num_kv_heads: int, sizes: TileSizes) -> TorchPlan:
    """Plan one step; waits for the device once, to learn whether all tokens are stored."""
    stored_T = (metadata.slot_mapping >= 0).nonzero()[:, 0]
    is_all_stored = len(stored_T) == len(metadata.slot_mapping)
    query_lens = metadata.query_lens_host
    starts = list(accumulate(query_lens, initial=0))
    decode_rows = [row for row, length in enumerate(query_lens) if length == 1]
    return TorchPlan(
        slots_T=metadata.slot_mapping if is_all_stored else metadata.slot_mapping[stored_T],
        stored_T=None if is_all_stored else stored_T,
        decodes=_plan_decodes(
            metadata,
            rows=decode_rows,
            starts=starts,
            num_kv_heads=num_kv_heads,
            most_slots=sizes.decode,
        )
        if decode_rows
        else None,
        chunks=tuple(
            _plan_chunk(metadata, row=row, start=starts[row], tile=sizes.chunk)
            for row, length in enumerate(query_lens)
            if length > 1
        ),
    )


def _plan_decodes(
    metadata: AttentionMetadata,
    *,
    rows: list[int],
    starts: list[int],
    num_kv_heads: int,
    most_slots: int,
) -> Decodes:
    lens = metadata.seq_lens_host
    width = max(1, most_slots // len(rows))
    longest = max(lens[row] for row in rows)
    if longest > width:
        # Longest first: the rows that reach into a later tile are then the first ones.
        rows = sorted(rows, key=lambda row: -lens[row])
    is_whole_step = rows == list(range(len(metadata.query_lens_host)))
    device = metadata.block_table.device
    rows_R = torch.tensor(rows, device=device)
    tokens_R = torch.tensor([starts[row] for row in rows], device=device)
    return Decodes(
        tokens_R=None if is_whole_step else tokens_R,
        tiles=tuple(
            _decode_tile(
                metadata,
                rows_n=rows_R[: sum(lens[row] > begin for row in rows)],
                columns=range(begin, min(begin + width, longest)),
                num_kv_heads=num_kv_heads,
                shortest=min(lens[row] for row in rows if lens[row] > begin),
            )
            for begin in range(0, longest, width)
        ),
    )


def _decode_tile(
    metadata: AttentionMetadata,
    *,
    rows_n: Tensor,
    columns: range,
    num_kv_heads: int,
    shortest: int,
) -> DecodeTile:
    positions_S = torch.arange(columns.start, columns.stop, device=rows_n.device)
    lens_n1 = metadata.seq_lens[rows_n].to(torch.int64)[:, None]
    slots_nS = _slots(metadata, rows_n, positions_S.minimum(lens_n1 - 1))
    bias = None
    if shortest < columns.stop:
        bias_n1S = torch.zeros(slots_nS.shape, device=rows_n.device)
        bias_n1S = bias_n1S.masked_fill_(positions_S >= lens_n1, MASKED)[:, None]
        bias = bias_n1S.repeat(num_kv_heads, 1, 1)
    return DecodeTile(num_rows=len(rows_n), slots_F=slots_nS.flatten(), bias=bias)


def _plan_chunk(metadata: AttentionMetadata, *, row: int, start: int, tile: int) -> Chunk:
    num_queries, context = metadata.query_lens_host[row], metadata.seq_lens_host[row]
    tiles: tuple[Tensor, ...] = ()
    if context > num_queries:
        device = metadata.block_table.device
        positions_1C = torch.arange(context, device=device)[None]
        tiles = _slots(metadata, torch.tensor([row], device=device), positions_1C)[0].split(tile)
    return Chunk(
        start=start, stop=start + num_queries, num_cached=context - num_queries, tiles=tiles
    )


def _slots(metadata: AttentionMetadata, rows_n: Tensor, positions_nS: Tensor) -> Tensor:
    """The slots of the rows' positions; int64 [n, S]."""
    blocks_nS = metadata.block_table[rows_n].gather(1, positions_nS // metadata.block_size)
    return blocks_nS.to(torch.int64) * metadata.block_size + positions_nS % metadata.block_size
