"""The seam between models and attention: a backend's protocol and the Attend object layers call.

Legend: T tokens of the step, N query heads, K key heads, H = N + 2K, S slots of the cache,
D head size.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.kv_cache import KVCache
from worker_service.attention.metadata import AttentionMetadata
from worker_service.kernels.rotary import Rotation


class AttentionBackend(Protocol):
    """Causal attention over a paged cache; a plan holds what all layers of a step share."""

    name: str
    has_static_plans: bool
    """Whether attention reads lengths, block tables and slots of a plan on the device alone, so that a
    plan of metadata with the longest lengths on the host fits every step of as many rows: for graphs."""

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> Any:
        """Work out once what every layer of the step needs."""
        ...

    def attend(
        self,
        plan: Any,
        *,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        keys_KSD: Tensor,
        values_KSD: Tensor,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Rotate queries and keys, store keys and values, attend; dense [T, N, D].

        Queries see their row's stored tokens up to themselves; a token whose slot is -1 is not
        stored. The rotation is the same object for all layers of a step, None: none.
        """
        ...

    def native_step(
        self,
        plan: Any,
        *,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        rotation: Rotation | None,
        num_slots: int,
    ) -> Tensor | None:
        """The step as native kernels read it, an AttentionStep; None from other backends.

        num_heads counts H.
        """
        ...


class Attend:
    """Attention of one step, as a function of a layer's projections."""

    def __init__(
        self, backend: AttentionBackend, kv_cache: KVCache, *metadata: AttentionMetadata
    ) -> None:
        """metadata: of each block table."""
        self._backend = backend
        self._kv_cache = kv_cache
        self._tables = kv_cache.groups.tables
        keys_KSD, _ = kv_cache.slots(0)
        # Tables of which this stage has no layer need no plan.
        self._plans = {
            table: backend.plan(metadata[table], num_kv_heads=keys_KSD.shape[0])
            for table in dict.fromkeys(self._tables)
        }

    def __call__(
        self,
        layer: int,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Attend as the stage's layer `layer` (from 0): N query, K key and K value heads; [T, N, D]."""
        keys_KSD, values_KSD = self._kv_cache.slots(layer)
        return self._backend.attend(
            self._plans[self._tables[layer]],
            qkv_THD=qkv_THD,
            rotation=rotation,
            keys_KSD=keys_KSD,
            values_KSD=values_KSD,
            form=form,
        )

    def native_step(
        self, *, num_heads: int, head_size: int, dtype: torch.dtype, rotation: Rotation | None
    ) -> Tensor | None:
        """The step as native kernels read it, where the backend is native; num_heads counts H.

        They run all layers at once, so only where all share a block table.
        """
        if len(self._plans) > 1:
            return None
        keys_KSD, _ = self._kv_cache.slots(0)
        return self._backend.native_step(
            self._plans[self._tables[0]],
            num_heads=num_heads,
            head_size=head_size,
            dtype=dtype,
            rotation=rotation,
            num_slots=keys_KSD.shape[1],
        )

    @property
    def addresses(self) -> Tensor:
        """Where each layer's cached keys and values begin; int64."""
        return self._kv_cache.addresses
