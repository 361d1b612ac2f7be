"""The values of one step: what the scheduler decides and what the workers answer.

Frozen dataclasses over numpy columns; protobuf is their spelling, in `common.codecs.step_codec`.
Rows of a step are the new requests in order, then the cached requests in order.
"""

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from common.requests import SamplingParams
from common.tensors import TensorDescriptor, WireTensor
from common.trace_context import TraceContext

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
Float32s = NDArray[np.float32]


class Phase(Enum):
    """Half of a step."""

    EXECUTE = 1
    SAMPLE = 2


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StepId:
    """Incarnation of the coordinator, of the worker group, and the dense number of the step."""

    epoch: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKey:
    """One phase of one step."""

    step_id: StepId
    phase: Phase

    def __str__(self) -> str:
        step_id = self.step_id
        return (
            f"step {step_id.step} {self.phase.name.lower()} "
            f"(epoch {step_id.epoch}, generation {step_id.generation})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """One slice of int32 values per row: row i is values[offsets[i]:offsets[i + 1]].

    values int32 [sum of lengths]; offsets uint32 [rows + 1], non-decreasing, first 0, last len(values).
    """

    values: Int32s
    offsets: NDArray[np.uint32]

    @classmethod
    def from_rows(cls, rows: "list[list[int]] | list[tuple[int, ...]] | list[Int32s]") -> "Ragged":
        """Pack rows of ints."""
        offsets = np.zeros(len(rows) + 1, dtype=np.uint32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        # Many short rows: one pass over the ints beats an array per row.
        values = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
        return cls(values, offsets)

    @classmethod
    def from_lengths(cls, values: Int32s, lengths: NDArray[np.integer]) -> "Ragged":
        """Cut values that follow each other into rows of these lengths, which add up to theirs."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.uint32)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def empty(cls, num_rows: int) -> "Ragged":
        """Rows without values."""
        return cls(_no_ints(), np.zeros(num_rows + 1, dtype=np.uint32))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64s:
        """Values of each row, int64 [rows]."""
        return np.diff(self.offsets.astype(np.int64))

    def row(self, index: int) -> Int32s:
        """Values of one row, a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]


def _no_handles() -> Uint64s:
    return np.empty(0, dtype=np.uint64)


def _no_ints() -> Int32s:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewRequest:
    """A request the worker does not know: all its tokens, its blocks per KV group, how to sample it.

    token_ids int32 [known tokens]: prompt first, then generated ones. block_ids: one int32 array
    per KV cache group. num_computed_tokens: tokens whose KV already stands in those blocks. trace:
    the span it belongs to, if any.
    """

    handle: int
    token_ids: Int32s
    num_prompt_tokens: int
    sampling: SamplingParams
    block_ids: tuple[Int32s, ...]
    num_computed_tokens: int
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedRequests:
    """Requests the worker knows, as parallel columns of R rows.

    handles uint64 [R]; num_computed_tokens int32 [R] before this step; new_block_ids: one Ragged of
    R rows per KV group, appended to the block table; new_token_ids: Ragged of R rows, appended to
    the known tokens before the step runs; token_source_steps uint64 [R], 0 = new_token_ids count.
    draft_token_ids: Ragged of R rows, guesses behind the known tokens that the step computes too and
    checks; None: no row was sent any. A row with a source has the drafts that step proposed after its
    tokens, as many as it computes tokens beyond one.
    """

    handles: Uint64s
    num_computed_tokens: Int32s
    new_block_ids: tuple[Ragged, ...]
    new_token_ids: Ragged
    token_source_steps: Uint64s
    draft_token_ids: Ragged | None = None

    @classmethod
    def none(cls, *, num_groups: int = 1) -> "CachedRequests":
        """No rows."""
        empty = Ragged.from_rows([])
        return cls(
            handles=_no_handles(),
            num_computed_tokens=_no_ints(),
            new_block_ids=(empty,) * num_groups,
            new_token_ids=empty,
            token_source_steps=_no_handles(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerOutput:
    """One scheduler decision, executed once by every rank of a replica.

    num_scheduled_tokens int32 [rows], each at least 1, may be empty (a step without tokens).
    finished_handles and preempted_handles uint64: dropped before anything is added.
    num_drafts_wanted int32 [rows], most drafts to propose for the step after; empty: none for any.
    """

    step_id: StepId
    base_step: int
    new_requests: tuple[NewRequest, ...] = ()
    cached_requests: CachedRequests = field(default_factory=CachedRequests.none)
    num_scheduled_tokens: Int32s = field(default_factory=_no_ints)
    finished_handles: Uint64s = field(default_factory=_no_handles)
    preempted_handles: Uint64s = field(default_factory=_no_handles)
    grammar_mask_follows: bool = False
    want_state_digest: bool = False
    num_drafts_wanted: Int32s = field(default_factory=_no_ints)

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the step."""
        return int(self.num_scheduled_tokens.sum())

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of rows that do not decode: prompts, and what is computed again.

        A row that decodes brings the token sampled last, the next chunk of a prompt brings none.
        """
        num_new = len(self.new_requests)
        cached = self.cached_requests
        is_chunk = (np.diff(cached.new_token_ids.offsets) == 0) & (cached.token_source_steps == 0)
        counts = self.num_scheduled_tokens
        return int(counts[:num_new].sum() + counts[num_new:][is_chunk].sum())

    @property
    def handles(self) -> list[int]:
        """Handles of the rows, in row order."""
        return [new.handle for new in self.new_requests] + self.cached_requests.handles.tolist()

    @property
    def num_rows(self) -> int:
        """Requests of the step."""
        return len(self.num_scheduled_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Where a step's time went on one rank, in nanoseconds of that rank's monotonic clock."""

    compute_start_ns: int = 0
    compute_end_ns: int = 0
    wait_input_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CudagraphStats:
    """How a step ran on one rank: in the graph of a shape, or eagerly.

    mode: "none", "piecewise" or "full"; num_padded_tokens: those computed, num_tokens of the step
    included.
    """

    mode: str
    num_tokens: int
    num_padded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GrammarMask:
    """Which tokens the grammars of G requests of a step allow, for each position that is sampled.

    handles uint64 [G], in row order; num_positions int32 [G], at least 1 each; bits int32 [sum of
    them, ceil(vocabulary / 32)]: bit i of word i // 32 is set where token i is allowed.
    """

    handles: Uint64s
    num_positions: Int32s
    bits: Int32s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logprobs:
    """Log-probabilities of P sampled positions with K alternatives, the chosen token in column 0.

    token_ids int32 [P, K + 1]; logprobs float32 [P, K + 1], natural; ranks int32 [P], 1-based.
    """

    token_ids: Int32s
    logprobs: Float32s
    ranks: Int32s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptLogprobs:
    """Log-probabilities of some of a prompt's tokens: those at first_position (at least 1) and after."""

    handle: int
    first_position: int
    logprobs: Logprobs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelRunnerOutput:
    """What a step produced on a last-stage rank, or the empty answer of a step without tokens.

    handles uint64 [S] in row order, only requests that sampled; sampled_token_ids: Ragged of S rows;
    logprobs: one position per sampled token in that order, when any request asked for them;
    prompt_logprobs: of requests that asked for them and had prompt tokens in the step;
    request_errors: (handle, message) of requests that failed alone. state_digest covers handles,
    block tables and computed counts, kv_digest the keys and values of all computed tokens; both
    when the step asked for them. drafts: Ragged of S rows, guesses that follow the sampled tokens;
    None: no row has any.
    """

    key: StepKey
    handles: Uint64s = field(default_factory=_no_handles)
    sampled_token_ids: Ragged = field(default_factory=lambda: Ragged.from_rows([]))
    drafts: Ragged | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    request_errors: tuple[tuple[int, str], ...] = ()
    timings: StepTimings = StepTimings()
    state_digest: bytes | None = None
    kv_digest: bytes | None = None
    cudagraph_stats: CudagraphStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntermediateTensors:
    """What a stage hands to the next: descriptors, and the bytes when they travel inline.

    inline None: the tensors travel on the tensor channel under the same key.
    """

    key: StepKey
    descriptors: tuple[TensorDescriptor, ...]
    inline: tuple[WireTensor, ...] | None = None
    timings: StepTimings = StepTimings()
    state_digest: bytes | None = None
    kv_digest: bytes | None = None
    cudagraph_stats: CudagraphStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutePending:
    """The forward pass is done and its hidden states are kept; the sample phase is due."""

    key: StepKey


ExecuteResult = ModelRunnerOutput | IntermediateTensors | ExecutePending
