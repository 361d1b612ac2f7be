"""The stage dispatch: in which shape a step runs, and whether a captured graph replays it.

A graph is captured for few shapes, and a step is padded to the next larger one of them. FULL holds the
whole forward pass, attention included, for steps whose rows all decode equally many tokens. PIECEWISE
holds what lies between the layers' attention, which runs eagerly, for steps of any rows. A step that no
graph fits runs eagerly as it is.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from common.step import CudagraphStats
from worker_service.batch.input_batch import InputBatch

_MOST_TOKENS = 512


class GraphMode(Enum):
    """How a step runs; the later, the more of it is in one graph."""

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDescriptor:
    """What decides whether a graph fits a step; None: of no matter to the graph.

    is_uniform_decode: each row computes max_query_len tokens and samples from all of them.
    """

    num_tokens: int
    num_rows: int | None
    max_query_len: int | None
    is_uniform_decode: bool = False
    num_adapters: int = 0
    has_encoder_inputs: bool = False

    def relaxed(self, num_tokens: int) -> "BatchDescriptor":
        """The key of a graph that has no attention in it: how tokens make rows does not matter."""
        return replace(
            self,
            num_tokens=num_tokens,
            num_rows=None,
            max_query_len=None,
            is_uniform_decode=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """How a step runs: mode and key of the graph, which has the padded sizes; NONE has the step's own."""

    mode: GraphMode
    key: BatchDescriptor

    def stats(self, batch: InputBatch) -> CudagraphStats:
        """What the reply tells of it."""
        return CudagraphStats(
            mode=self.mode.value,
            num_tokens=batch.num_tokens,
            num_padded_tokens=self.key.num_tokens,
        )


def describe(batch: InputBatch, *, decode_len: int = 1) -> BatchDescriptor:
    """The descriptor of a step; decode_len: tokens of a row that decodes, drafts included."""
    longest = int(batch.query_lens.max())
    is_uniform = bool((batch.query_lens == decode_len).all())
    return BatchDescriptor(
        num_tokens=batch.num_tokens,
        num_rows=batch.num_rows,
        max_query_len=longest,
        is_uniform_decode=is_uniform and len(batch.sampling_rows) == batch.num_rows,
    )


def default_capture_sizes(most_tokens: int) -> tuple[int, ...]:
    """Tokens of the shapes that graphs are captured for: dense where steps are small."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _MOST_TOKENS + 1, 16)]
    return tuple(size for size in sizes if size <= most_tokens)


class GraphDispatcher:
    """Finds the graph for a step: FULL before PIECEWISE before none."""

    def __init__(
        self, mode: GraphMode, sizes: Iterable[int], *, most_rows: int, decode_len: int = 1
    ) -> None:
        """mode: the most that may be in one graph. sizes: tokens of each shape."""
        self._mode = mode
        self._sizes = sorted(set(sizes)) if mode is not GraphMode.NONE else []
        # A uniform step is as long as whole rows of it are.
        self._full_rows = sorted(
            {
                size // decode_len
                for size in self._sizes
                if mode is GraphMode.FULL and 1 <= size // decode_len <= most_rows
            }
        )
        self.decode_len = decode_len

    def keys(self, mode: GraphMode) -> list[BatchDescriptor]:
        """The shapes to capture, the largest first: smaller ones fit into the memory of larger ones."""
        if mode is GraphMode.FULL:
            return [self._full_key(rows) for rows in reversed(self._full_rows)]
        if mode is GraphMode.PIECEWISE:
            return [self._relaxed_key(size) for size in reversed(self._sizes)]
        return []

    def dispatch(self, descriptor: BatchDescriptor) -> Dispatch:
        """How a step of this description runs."""
        if not descriptor.has_encoder_inputs and not descriptor.num_adapters:
            rows = _next_larger(self._full_rows, descriptor.num_rows or 0)
            if descriptor.is_uniform_decode and rows is not None:
                return Dispatch(mode=GraphMode.FULL, key=self._full_key(rows))
            size = _next_larger(self._sizes, descriptor.num_tokens)
            if size is not None:
                return Dispatch(mode=GraphMode.PIECEWISE, key=descriptor.relaxed(size))
        return Dispatch(mode=GraphMode.NONE, key=descriptor)

    def _full_key(self, rows: int) -> BatchDescriptor:
        return BatchDescriptor(
            num_tokens=rows * self.decode_len,
            num_rows=rows,
            max_query_len=self.decode_len,
            is_uniform_decode=True,
        )

    def _relaxed_key(self, size: int) -> BatchDescriptor:
        return BatchDescriptor(num_tokens=size, num_rows=None, max_query_len=None)


def _next_larger(sizes: list[int], size: int) -> int | None:
    """The first that is at least as large."""
    index = bisect_left(sizes, size)
    return sizes[index] if index < len(sizes) else None
