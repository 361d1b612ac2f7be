"""Builds the attention metadata of hand-made steps over sequences with scattered blocks."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from common.worker_api import KVCacheGroup, KVCacheSpec
from worker_service.attention.kv_cache import KVCache
from worker_service.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a step: its block ids, tokens cached before, tokens of the step."""

    blocks: list[int]
    num_cached: int
    num_tokens: int


def step_metadata(rows: list[Row], *, block_size: int, padding: int = 0) -> AttentionMetadata:
    """The metadata of a step; missing columns of the block table hold the block id `padding`."""
    width = max(len(row.blocks) for row in rows)
    lens = [row.num_cached + row.num_tokens for row in rows]
    query_lens = [row.num_tokens for row in rows]
    table = [row.blocks + [padding] * (width - len(row.blocks)) for row in rows]
    return AttentionMetadata(
        query_offsets=torch.tensor(list(accumulate(query_lens, initial=0)), dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_table=torch.tensor(table, dtype=torch.int32),
        slot_mapping=torch.cat([row_slots(row, block_size)[row.num_cached :] for row in rows]),
        query_lens_host=tuple(query_lens),
        seq_lens_host=tuple(lens),
        max_query_len=max(query_lens),
        max_seq_len=max(lens),
        block_size=block_size,
    )


def row_slots(row: Row, block_size: int) -> Tensor:
    """The slots of the row's tokens, this step's included; int64."""
    positions = torch.arange(row.num_cached + row.num_tokens)
    return torch.tensor(row.blocks)[positions // block_size] * block_size + positions % block_size


def row_positions(rows: list[Row]) -> Tensor:
    """The positions of the step's tokens; int64 [T]."""
    return torch.cat(
        [torch.arange(row.num_cached, row.num_cached + row.num_tokens) for row in rows]
    )


def small_cache(
    *,
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
) -> KVCache:
    """A CPU cache full of NaN, so that reading what was never stored shows."""
    group = KVCacheGroup(
        kind="full",
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        bytes_per_block=2 * num_layers * num_kv_heads * head_size * block_size * dtype.itemsize,
    )
    spec = KVCacheSpec(block_size=block_size, groups=(group,))
    cache = KVCache.allocate(spec, num_blocks=num_blocks, device=torch.device("cpu"), dtype=dtype)
    for layer in range(num_layers):
        for tensor in cache.slots(layer):
            tensor.fill_(float("nan"))
    return cache
