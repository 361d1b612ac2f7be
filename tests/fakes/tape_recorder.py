"""Graphs without a GPU: every torch operation is noted and done again on the same tensors.

As with a CUDA graph, what Python decides is decided at the capture, addresses stay, and what a replay
finds in its inputs decides what it writes. Operations that torch does not see, such as native kernels, would
be missing: they are turned off.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker_service.kernels import native


class Tape(TorchDispatchMode):
    """The operations of one piece of work."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self.num_replays = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do it, and note it."""
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Do all of it again; results land where they did at first."""
        self.num_replays += 1
        for func, args, kwargs, result in self.calls:
            places = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            given = {
                leaf.untyped_storage().data_ptr()
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, Tensor)
            }
            again = [
                leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)
            ]
            for place, value in zip(places, again, strict=True):
                if place.untyped_storage().data_ptr() not in given:
                    place.copy_(value)


class TapeRecorder:
    """Hands out tapes; `tapes` are all of them, `num_tokens` what each began with, in order."""

    def __init__(self, device: torch.device) -> None:
        del device
        self.tapes: list[Tape] = []
        self.num_sessions = 0

    def session(self) -> AbstractContextManager[object]:
        """Nothing has to be prepared."""
        self.num_sessions += 1
        return nullcontext()

    def begin(self) -> None:
        """Note operations from here on."""
        tape = Tape()
        self.tapes.append(tape)
        tape.__enter__()

    def end(self) -> Tape:
        """The tape."""
        tape = self.tapes[-1]
        tape.__exit__(None, None, None)
        return tape


@contextmanager
def without_native_kernels() -> Iterator[None]:
    """Let models that are loaded within compute by torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_MODULE", "no.such.module")
        native.native_kernels.cache_clear()
        yield
    native.native_kernels.cache_clear()
