"""The seam between models and attention: a backend's protocol and the Attend object layers call.

Legend: T tokens of the step, N query heads, K key heads, H = N + 2K, S slots of the cache,
D head size.
"""

from typing import Any, Protocol

from torch import Tensor

from worker_service.attention.kv_cache import KVCache
from worker_service.attention.metadata import AttentionMetadata
from worker_service.kernels.rotary import Rotation


class AttentionBackend(Protocol):
    """Causal attention over a paged cache; a plan holds what all layers of a step share."""

    name: str

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
    ) -> Tensor:
        """Rotate queries and keys, store keys and values, attend; dense [T, N, D].

        Queries see their row's stored tokens up to themselves; a token whose slot is -1 is not
        stored. The rotation is the same object for all layers of a step, None: none.
        """
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

    def __call__(self, layer: int, qkv_THD: Tensor, rotation: Rotation | None) -> Tensor:
        """Attend as the stage's layer `layer` (from 0): N query, K key and K value heads; [T, N, D]."""
        keys_KSD, values_KSD = self._kv_cache.slots(layer)
        return self._backend.attend(
            self._plan,
            qkv_THD=qkv_THD,
            rotation=rotation,
            keys_KSD=keys_KSD,
            values_KSD=values_KSD,
        )
