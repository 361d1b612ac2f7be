"""Paged attention in plain torch: the reference, on any device.

Legend: T tokens of the step, N query heads, K key heads, H = N + 2K, S slots, R decode rows,
D head size.
"""

import torch
from torch import Tensor

from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.gather_buffer import GatherBuffer
from worker_service.attention.metadata import AttentionMetadata
from worker_service.attention.torch_chunk import attend_chunk, attend_prompt
from worker_service.attention.torch_decode import attend_group
from worker_service.attention.torch_plan import Decodes, TileSizes, TorchPlan, plan_step
from worker_service.attention.torch_window import attend_rows
from worker_service.kernels.rotary import Rotation, rotate


class TorchBackend:
    """Gathers tiles of slots and multiplies; key heads are shared by their queries, never repeated."""

    name = "torch"
    has_static_plans = False

    def __init__(self, sizes: TileSizes | None = None) -> None:
        self._sizes = sizes or TileSizes()
        self._buffer = GatherBuffer()

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> TorchPlan:
        """Work out the step's slots and masks."""
        return plan_step(metadata, num_kv_heads=num_kv_heads, sizes=self._sizes)

    def attend(
        self,
        plan: TorchPlan,
        *,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        keys_KSD: Tensor,
        values_KSD: Tensor,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Rotate queries and keys, store keys and values, attend; dense [T, N, D]."""
        num_kv_heads = keys_KSD.shape[0]
        qk_THD, v_TKD = qkv_THD[:, :-num_kv_heads], qkv_THD[:, -num_kv_heads:]
        if rotation is not None:
            # Queries and keys turn alike, so both are turned at once.
            qk_THD = rotate(qk_THD, rotation)
        q_TND, k_TKD = qk_THD[:, :-num_kv_heads], qk_THD[:, -num_kv_heads:]
        _store(plan, k_TKD=k_TKD, v_TKD=v_TKD, keys_KSD=keys_KSD, values_KSD=values_KSD)
        if not form.is_plain:
            return attend_rows(
                q_TND,
                keys_KSD=keys_KSD,
                values_KSD=values_KSD,
                metadata=plan.metadata,
                form=form,
            )
        decodes = plan.decodes
        if decodes is not None and decodes.tokens_R is None:
            return self._attend_decodes(decodes, q_TND, keys_KSD, values_KSD)
        out_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype, device=q_TND.device)
        if decodes is not None:
            q_RND = q_TND[decodes.tokens_R]
            out_RND = self._attend_decodes(decodes, q_RND, keys_KSD, values_KSD)
            out_TND[decodes.tokens_R] = out_RND
        for chunk in plan.chunks:
            tokens = slice(chunk.start, chunk.stop)
            q_NLD = q_TND[tokens].transpose(0, 1)
            if chunk.tiles:
                out_NLD = attend_chunk(chunk, q_NLD, keys_KSD, values_KSD)
            else:
                out_NLD = attend_prompt(q_NLD, k_TKD[tokens], v_TKD[tokens])
            out_TND[tokens] = out_NLD.transpose(0, 1)
        return out_TND

    def native_step(
        self,
        plan: TorchPlan,
        *,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        rotation: Rotation | None,
        num_slots: int,
    ) -> None:
        """Native kernels have no part in this."""

    def _attend_decodes(
        self, decodes: Decodes, q_RND: Tensor, keys_KSD: Tensor, values_KSD: Tensor
    ) -> Tensor:
        results = [
            attend_group(
                group.tiles,
                q_RND[group.start : group.stop],
                keys_KSD=keys_KSD,
                values_KSD=values_KSD,
                buffer=self._buffer,
            )
            for group in decodes.groups
        ]
        return results[0] if len(results) == 1 else torch.cat(results)


def _store(
    plan: TorchPlan, *, k_TKD: Tensor, v_TKD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
) -> None:
    """Write the step's keys and values to their slots."""
    if plan.stored_T is not None:
        k_TKD, v_TKD = k_TKD[plan.stored_T], v_TKD[plan.stored_T]
    keys_KSD.index_copy_(1, plan.slots_T, k_TKD.transpose(0, 1))
    values_KSD.index_copy_(1, plan.slots_T, v_TKD.transpose(0, 1))
