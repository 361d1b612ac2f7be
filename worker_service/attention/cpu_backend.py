"""Paged attention by the native CPU kernels: one call rotates, stores and attends a whole layer.

Legend: T tokens of the step, N query heads, K key heads, H = N + 2K, S slots, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.errors import ConfigError
from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.metadata import AttentionMetadata
from worker_service.kernels.native import NativeKernels, native_kernels
from worker_service.kernels.rotary import Rotation

_LANES = 16
_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(slots=True, kw_only=True, eq=False)
class CpuPlan:
    """A step's metadata, kept alive for the kernel, and what was made of it for the first layer.

    fields int64: the AttentionStep of cpu/attention_step.h.
    """

    metadata: AttentionMetadata
    num_kv_heads: int
    rotation: Rotation | None = None
    fields: Tensor | None = None


class CpuBackend:
    """Reads each cached key once for the query heads that share it, and sums in float32."""

    name = "cpu"
    has_static_plans = False

    def __init__(self, kernels: NativeKernels) -> None:
        self._kernels = kernels

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> CpuPlan:
        """Keep the metadata: the kernel reads it as it is."""
        assert metadata.block_table.is_contiguous(), "rows follow each other"
        return CpuPlan(metadata=metadata, num_kv_heads=num_kv_heads)

    def attend(
        self,
        plan: CpuPlan,
        *,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        keys_KSD: Tensor,
        values_KSD: Tensor,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Rotate queries and keys, store keys and values, attend; dense [T, N, D]."""
        assert form.is_plain, "other forms get another backend"
        num_tokens, num_all_heads, head_size = qkv_THD.shape
        fields = self.native_step(
            plan,
            num_heads=num_all_heads,
            head_size=head_size,
            dtype=qkv_THD.dtype,
            rotation=rotation,
            num_slots=keys_KSD.shape[1],
        )
        out_TND = torch.empty(
            (num_tokens, num_all_heads - 2 * plan.num_kv_heads, head_size), dtype=qkv_THD.dtype
        )
        self._kernels.attend(
            fields.data_ptr(),
            qkv_THD.data_ptr(),
            keys_KSD.data_ptr(),
            values_KSD.data_ptr(),
            out_TND.data_ptr(),
        )
        return out_TND

    def native_step(
        self,
        plan: CpuPlan,
        *,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        rotation: Rotation | None,
        num_slots: int,
    ) -> Tensor:
        """The AttentionStep of cpu/attention_step.h, made for the first layer of a step."""
        if plan.fields is None or plan.rotation is not rotation:
            metadata = plan.metadata
            plan.rotation = rotation
            plan.fields = torch.tensor(
                (
                    dtype is torch.bfloat16,
                    len(metadata.query_lens_host),
                    num_heads - 2 * plan.num_kv_heads,
                    plan.num_kv_heads,
                    head_size,
                    num_slots,
                    metadata.block_size,
                    metadata.block_table.shape[1],
                    metadata.query_offsets.data_ptr(),
                    metadata.seq_lens.data_ptr(),
                    metadata.block_table.data_ptr(),
                    metadata.slot_mapping.data_ptr(),
                    0 if rotation is None else rotation.cos_T1D.data_ptr(),
                    0 if rotation is None else rotation.sin_T1D.data_ptr(),
                ),
                dtype=torch.int64,
            )
        return plan.fields


def make_cpu_backend(
    *, device: torch.device, dtype: torch.dtype, head_size: int
) -> CpuBackend | ConfigError:
    """The backend, or the error that says why it cannot serve such a model there."""
    kernels = native_kernels()
    if device.type != "cpu":
        return ConfigError(f"attention backend cpu needs a CPU, not {device}")
    if kernels is None:
        return ConfigError("attention backend cpu needs the native kernels, which are not here")
    if dtype not in _DTYPES:
        return ConfigError(f"attention backend cpu computes in bfloat16 or float32, not {dtype}")
    if head_size % _LANES:
        return ConfigError(
            f"attention backend cpu needs a head size that {_LANES} divides, not {head_size}"
        )
    return CpuBackend(kernels)
