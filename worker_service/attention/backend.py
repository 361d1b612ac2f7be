"""The seam between models and attention: a backend's protocol and the Attend object layers call.

Legend: T tokens of the step, N query heads, K key heads, S slots of the cache, D head size.
"""

from typing import Any, Protocol

from torch import Tensor

from worker_service.attention.kv_cache import KVCache
from worker_service.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Causal attention over a paged cache; a plan holds what all layers of a step share."""

    name: str

    def plan(self, metadata: AttentionMetadata, *, num_kv_heads: int) -> Any:
        """Work out once what every layer of the step needs."""
        ...

    def store(
        self, plan: Any, *, k_TKD: Tensor, v_TKD: Tensor, keys_KSD: Tensor, values_KSD: Tensor
    ) -> None:
        """Write the step's keys and values to their slots; slot -1 writes nothing."""
        ...

    def attend(
        self,
        plan: Any,
        *,
        q_TND: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        keys_KSD: Tensor,
        values_KSD: Tensor,
    ) -> Tensor:
        """Attend from the step's queries to their rows' stored tokens up to themselves; [T, N, D]."""
        ...


class Attend:
    """Attention of one step, as a function of a layer's projections."""

    def __init__(
        self, backend: AttentionBackend, kv_cache: KVCache, metadata: AttentionMetadata
    ) -> None:
        self._backend = backend
        self._kv_cache = kv_cache
        keys_KSD, _ = kv_cache.slots(0)
        self._plan = backend.plan(metadata, num_kv_heads=keys_KSD.shape[0])

    def __call__(self, layer: int, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Store keys and values of the stage's layer `layer` (from 0), then attend; [T, N, D]."""
        keys_KSD, values_KSD = self._kv_cache.slots(layer)
        backend, plan = self._backend, self._plan
        backend.store(plan, k_TKD=k_TKD, v_TKD=v_TKD, keys_KSD=keys_KSD, values_KSD=values_KSD)
        return backend.attend(
            plan, q_TND=q_TND, k_TKD=k_TKD, v_TKD=v_TKD, keys_KSD=keys_KSD, values_KSD=values_KSD
        )
