"""Attention of decode rows: one query each, a group of rows per matmul.

Legend: n rows of the group, N query heads, K key heads, G = N / K, B = K * n, S slots per row of a
tile, D head size.
"""

import torch
from torch import Tensor

from worker_service.attention.gather_buffer import GatherBuffer
from worker_service.attention.partial_softmax import attend_part, scaled_scores
from worker_service.attention.torch_plan import DecodeTile


def attend_group(
    tiles: tuple[DecodeTile, ...],
    q_nND: Tensor,
    *,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    buffer: GatherBuffer,
) -> Tensor:
    """Attend from each row's query to the row's context; [n, N, D] in the queries' dtype."""
    num_rows, num_heads, head_size = q_nND.shape
    num_kv_heads = keys_KSD.shape[0]
    q_nKGD = (q_nND.float() * head_size**-0.5).view(num_rows, num_kv_heads, -1, head_size)
    q_BGD = q_nKGD.transpose(0, 1).reshape(num_kv_heads * num_rows, -1, head_size)
    attend = _attend_tile if len(tiles) == 1 else _attend_tiles
    out_BGD = attend(tiles, q_BGD, keys_KSD=keys_KSD, values_KSD=values_KSD, buffer=buffer)
    out_nKGD = out_BGD.view(num_kv_heads, num_rows, -1, head_size).transpose(0, 1)
    return out_nKGD.reshape(num_rows, num_heads, head_size).to(q_nND.dtype).contiguous()


def _attend_tile(
    tiles: tuple[DecodeTile, ...],
    q_BGD: Tensor,
    *,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    buffer: GatherBuffer,
) -> Tensor:
    """Attend to the only tile."""
    (tile,) = tiles
    weights_BGS = _scores(tile, q_BGD, keys_KSD, buffer).softmax(dim=-1)
    return torch.bmm(weights_BGS, _gather(tile, values_KSD, buffer, batch=len(q_BGD)))


def _attend_tiles(
    tiles: tuple[DecodeTile, ...],
    q_BGD: Tensor,
    *,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    buffer: GatherBuffer,
) -> Tensor:
    """Attend to each tile and merge."""
    merged = None
    for tile in tiles:
        # The values take the buffer of the keys, which the scores no longer need.
        scores_BGS = _scores(tile, q_BGD, keys_KSD, buffer)
        v_BSD = _gather(tile, values_KSD, buffer, batch=len(q_BGD))
        part = attend_part(scores_BGS, v_BSD)
        merged = part if merged is None else merged.merge(part)
    assert merged is not None, "a context has at least one tile"
    return merged.out


def _scores(tile: DecodeTile, q_BGD: Tensor, keys_KSD: Tensor, buffer: GatherBuffer) -> Tensor:
    k_BSD = _gather(tile, keys_KSD, buffer, batch=len(q_BGD))
    return scaled_scores(q_BGD, k_BSD, tile.bias)


def _gather(tile: DecodeTile, cache_KSD: Tensor, buffer: GatherBuffer, *, batch: int) -> Tensor:
    """The tile's slots by key head and row; float32 [B, S, D]."""
    gathered_KFD = buffer.gather(cache_KSD, tile.slots_F)
    return gathered_KFD.view(batch, -1, gathered_KFD.shape[-1])
