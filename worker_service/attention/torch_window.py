"""Attention of rows one by one in plain torch, with sliding window and soft cap: the reference of both.

    scores = cap(scale * q . k),  cap(x) = soft_cap * tanh(x / soft_cap)

A query at position p sees the tokens c with p - window < c <= p. Memory grows with the longest row.

Legend: T tokens of the step, L queries and C visible tokens of a row, N query heads, K key heads,
S slots, D head size.
"""

import torch
from torch import Tensor

from worker_service.attention.form import AttentionForm
from worker_service.attention.metadata import AttentionMetadata


def attend_rows(
    q_TND: Tensor,
    *,
    keys_KSD: Tensor,
    values_KSD: Tensor,
    metadata: AttentionMetadata,
    form: AttentionForm,
) -> Tensor:
    """Attend each row to what stands of it in the cache; dense [T, N, D] in the queries' dtype."""
    out_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
    start = 0
    for row, num_queries in enumerate(metadata.query_lens_host):
        stop = start + num_queries
        context = metadata.seq_lens_host[row]
        first = 0
        if form.window:
            first = max(0, context - num_queries - form.window + 1)
        columns_C = torch.arange(first, context, device=q_TND.device)
        blocks_C = metadata.block_table[row, columns_C // metadata.block_size].to(torch.int64)
        slots_C = blocks_C * metadata.block_size + columns_C % metadata.block_size
        out_TND[start:stop] = _attend_row(
            q_TND[start:stop], keys_KSD[:, slots_C], values_KSD[:, slots_C], form=form
        )
        start = stop
    return out_TND


def _attend_row(q_LND: Tensor, k_KCD: Tensor, v_KCD: Tensor, *, form: AttentionForm) -> Tensor:
    """The last L of the row's tokens attend to its last C."""
    num_queries, num_heads, head_size = q_LND.shape
    num_kv_heads, context, _ = k_KCD.shape
    q_KGLD = (q_LND.float() * head_size**-0.5).transpose(0, 1)
    q_KGLD = q_KGLD.reshape(num_kv_heads, -1, head_size)
    scores = torch.bmm(q_KGLD, k_KCD.float().mT).view(num_kv_heads, -1, num_queries, context)
    if form.soft_cap:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    columns_C = torch.arange(context, device=q_LND.device)
    at_L1 = torch.arange(context - num_queries, context, device=q_LND.device)[:, None]
    is_visible = columns_C <= at_L1
    if form.window:
        is_visible &= columns_C > at_L1 - form.window
    weights = scores.masked_fill(~is_visible, float("-inf")).softmax(dim=-1)
    out = torch.bmm(weights.view(num_kv_heads, -1, context), v_KCD.float())
    return out.view(num_heads, num_queries, head_size).transpose(0, 1).to(q_LND.dtype)
