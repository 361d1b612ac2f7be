"""Attention of uniform decodes that reads all lengths on the device: fit for a graph, in plain torch.

Legend: R rows, L queries of each, C most tokens of a context, N query heads, K key heads, D head size.
"""

from typing import Any

import torch
from torch import Tensor

from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.metadata import AttentionMetadata
from worker_service.kernels.rotary import Rotation, rotate


class StaticBackend:
    """Looks at the longest context there may be, and masks what a row does not have."""

    name = "static"
    has_static_plans = True

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> AttentionMetadata:
        """The metadata is all it takes."""
        del num_kv_heads
        return metadata

    def attend(
        self,
        plan: AttentionMetadata,
        *,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        keys_KSD: Tensor,
        values_KSD: Tensor,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Rotate, store where the slot is not -1, attend; dense [T, N, D]."""
        num_kv_heads = keys_KSD.shape[0]
        qk_THD, v_TKD = qkv_THD[:, :-num_kv_heads], qkv_THD[:, -num_kv_heads:]
        if rotation is not None:
            qk_THD = rotate(qk_THD, rotation)
        q_TND, k_TKD = qk_THD[:, :-num_kv_heads], qk_THD[:, -num_kv_heads:]
        slots_T = plan.slot_mapping
        # What is not stored is written as it stands, into the null block's first slot.
        is_stored = (slots_T >= 0)[:, None, None]
        at_T = slots_T.clamp(min=0)
        for stored_KSD, new_TKD in ((keys_KSD, k_TKD), (values_KSD, v_TKD)):
            kept_TKD = stored_KSD[:, at_T].transpose(0, 1)
            stored_KSD[:, at_T] = torch.where(is_stored, new_TKD, kept_TKD).transpose(0, 1)
        out_TND = torch.empty(q_TND.shape)
        start = 0
        columns_C = torch.arange(plan.max_seq_len)
        for row, count in enumerate(plan.query_lens_host):
            at_L1 = plan.seq_lens[row].long() - count + torch.arange(count)[:, None]
            blocks_C = plan.block_table[row, columns_C // plan.block_size].long()
            slots_C = blocks_C * plan.block_size + columns_C % plan.block_size
            is_seen = columns_C <= at_L1
            if form.window:
                is_seen &= columns_C > at_L1 - form.window
            is_seen_by_any = is_seen.any(dim=0)[None, :, None]
            k_KCD = torch.where(is_seen_by_any, keys_KSD[:, slots_C], 0.0)
            v_KCD = torch.where(is_seen_by_any, values_KSD[:, slots_C], 0.0)
            q_KGLD = q_TND[start : start + count].transpose(0, 1) * q_TND.shape[-1] ** -0.5
            q_KGLD = q_KGLD.reshape(num_kv_heads, -1, count, q_TND.shape[-1])
            scores = (q_KGLD @ k_KCD[:, None].mT).masked_fill(~is_seen, float("-inf"))
            out_KGLD = scores.softmax(dim=-1) @ v_KCD[:, None]
            out_TND[start : start + count] = out_KGLD.flatten(0, 1).transpose(0, 1)
            start += count
        return out_TND

    def native_step(self, plan: AttentionMetadata, **kwargs: Any) -> None:
        """Native kernels have no part in this."""
