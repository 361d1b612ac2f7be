"""Plans a step for the torch backend: which slots each matmul reads, worked out once for all layers.

Rows with one query are decodes, taken in groups of rows of similar length; rows with more are
chunks, taken one by one. Both read the cache in tiles of slots, so that memory and time follow the
rows' lengths and never the size of the cache.

Legend: T tokens of the step, R decode rows, n rows of a group, F slots of a tile, K key heads,
S slots per row of a tile, C tokens of a context.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from worker_service.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """Most slots gathered at once: for a group of decodes, and of one chunk's context."""

    decode: int = 4096
    chunk: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTile:
    """The same columns of context for each row of a group.

    slots_F int64 [n * S]; a row that is shorter repeats its last slot and is masked there by bias,
    float32 [K * n, 1, S], which is None when no row is.
    """

    slots_F: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeGroup:
    """Decode rows [start, stop) in planned order; more than one row only if they take one tile."""

    start: int
    stop: int
    tiles: tuple[DecodeTile, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decodes:
    """The decode rows; tokens_R int64 says where they stand in the step, None: they are the step."""

    tokens_R: Tensor | None
    groups: tuple[DecodeGroup, ...]


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

    metadata: AttentionMetadata
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
        metadata=metadata,
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
    if len(rows) * max(lens[row] for row in rows) > most_slots:
        # Neighbours of similar length waste little on padding.
        rows = sorted(rows, key=lambda row: -lens[row])
    is_whole_step = rows == list(range(len(metadata.query_lens_host)))
    device = metadata.block_table.device
    rows_R = torch.tensor(rows, device=device)
    tokens_R = torch.tensor([starts[row] for row in rows], device=device)
    return Decodes(
        tokens_R=None if is_whole_step else tokens_R,
        groups=tuple(
            _plan_group(
                metadata,
                span=span,
                rows_n=rows_R[span.start : span.stop],
                lens=[lens[row] for row in rows[span.start : span.stop]],
                num_kv_heads=num_kv_heads,
                most_slots=most_slots,
            )
            for span in _group([lens[row] for row in rows], most_slots)
        ),
    )


def _plan_group(
    metadata: AttentionMetadata,
    *,
    span: range,
    rows_n: Tensor,
    lens: list[int],
    num_kv_heads: int,
    most_slots: int,
) -> DecodeGroup:
    tiles = tuple(
        _decode_tile(
            metadata,
            rows_n=rows_n,
            columns=columns,
            is_ragged=min(lens) < columns.stop,
            num_kv_heads=num_kv_heads,
        )
        for columns in _split(max(lens), most_slots)
    )
    return DecodeGroup(start=span.start, stop=span.stop, tiles=tiles)


def _group(lens: list[int], most_slots: int) -> list[range]:
    """Cut rows into groups that fit most_slots at their longest row's length, or are one row."""
    groups: list[range] = []
    start = longest = 0
    for row, length in enumerate(lens):
        longest = max(longest, length)
        if row > start and longest * (row + 1 - start) > most_slots:
            groups.append(range(start, row))
            start, longest = row, length
    return [*groups, range(start, len(lens))]


def _split(length: int, width: int) -> list[range]:
    """Cut columns [0, length) into pieces of at most width."""
    return [range(start, min(start + width, length)) for start in range(0, length, width)]


def _decode_tile(
    metadata: AttentionMetadata,
    *,
    rows_n: Tensor,
    columns: range,
    is_ragged: bool,
    num_kv_heads: int,
) -> DecodeTile:
    positions_S = torch.arange(columns.start, columns.stop, device=rows_n.device)
    lens_n1 = metadata.seq_lens[rows_n].to(torch.int64)[:, None]
    slots_nS = _slots(metadata, rows_n, positions_S.minimum(lens_n1 - 1))
    bias = None
    if is_ragged:
        bias_nS = torch.zeros(slots_nS.shape, device=rows_n.device)
        bias_nS.masked_fill_(positions_S >= lens_n1, float("-inf"))
        bias = bias_nS[:, None].repeat(num_kv_heads, 1, 1)
    return DecodeTile(slots_F=slots_nS.flatten(), bias=bias)


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
