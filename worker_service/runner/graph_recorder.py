"""Records what is launched on a GPU, to launch it again in one call: torch.cuda.CUDAGraph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import torch


class RecordedGraph(Protocol):
    """Work on tensors at fixed addresses."""

    def replay(self) -> None:
        """Do it again, on what stands in those tensors now."""
        ...


class GraphRecorder(Protocol):
    """Records between `begin` and `end`; all graphs of a recorder take their memory from one pool."""

    def session(self) -> AbstractContextManager[object]:
        """Within it graphs are recorded, one after the other."""
        ...

    def begin(self) -> None:
        """Record from here on."""
        ...

    def end(self) -> RecordedGraph:
        """What was recorded."""
        ...


MakeRecorder = Callable[[torch.device], GraphRecorder | None]


class CudaRecorder:
    """Graphs of one GPU, captured on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def session(self) -> AbstractContextManager[object]:
        """Wait for what runs, then switch to the capture stream."""
        stack = ExitStack()
        torch.cuda.synchronize(self._device)
        stack.enter_context(torch.cuda.stream(self._stream))
        stack.callback(torch.cuda.synchronize, self._device)
        return stack

    def begin(self) -> None:
        """Begin a capture; calls of other threads do not disturb it."""
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> RecordedGraph:
        """End it."""
        assert self._graph is not None, "begin comes first"
        self._graph.capture_end()
        graph, self._graph = self._graph, None
        return graph


def cuda_recorder(device: torch.device) -> GraphRecorder | None:
    """The recorder of a GPU; None on other devices, which have no graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None
