"""How many bytes of tensors some work needs at its peak beyond those that stood before it.

On a GPU the allocator counts them. On a CPU, where no allocator does, every tensor that an operation
returns is followed from its making to its release: scratch memory inside an operation is not seen.
"""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(Protocol):
    """Measures while it is entered; peak_bytes counts from the state at entry."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes at once."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None: ...


def memory_meter(device: torch.device) -> MemoryMeter:
    """The meter for tensors on a device."""
    return AllocatorMeter(device) if device.type == "cuda" else TensorMeter()


class AllocatorMeter:
    """Reads the statistics of the CUDA allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes_before = 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes at once, waiting for the work queued so far."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._bytes_before

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._bytes_before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Give back what the allocator keeps of released tensors: the KV cache needs one large piece."""
        torch.cuda.empty_cache()


class TensorMeter(TorchFunctionMode):
    """Follows the storage of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes_by_storage: dict[int, int] = {}
        self._live_bytes = 0
        self._peak_bytes = 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes at once."""
        return self._peak_bytes

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation; storages it was given, as far as unknown, stood before and count nothing."""
        for tensor in _tensors((args, kwargs)):
            self._follow(tensor.untyped_storage(), num_bytes=0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            self._follow(storage, num_bytes=storage.nbytes())
        return result

    def _follow(self, storage: torch.UntypedStorage, *, num_bytes: int) -> None:
        key = storage._cdata
        if key in self._bytes_by_storage:
            return
        self._bytes_by_storage[key] = num_bytes
        self._live_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self._live_bytes -= self._bytes_by_storage.pop(key)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
