"""What a drafter holds on its device, as the arithmetic of the KV cache needs it."""

from dataclasses import dataclass

from common.worker_api import KVCacheGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMemory:
    """Bytes of parameters, and layers with keys and values of their own in the target's blocks.

    num_spare_blocks: blocks those layers have beyond the target's, whose ids no request is given.
    """

    parameter_bytes: int = 0
    kv_cache_groups: tuple[KVCacheGroup, ...] = ()
    num_spare_blocks: int = 0

    @property
    def spare_bytes(self) -> int:
        """Bytes of the spare blocks."""
        return self.num_spare_blocks * sum(group.bytes_per_block for group in self.kv_cache_groups)
