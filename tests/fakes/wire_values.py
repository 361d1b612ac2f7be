"""Values of the wire: strategies that draw valid ones, and how to compare them."""

from dataclasses import fields, is_dataclass
from enum import Enum

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    CudagraphStats,
    GrammarMask,
    IntermediateTensors,
    Logprobs,
    ModelRunnerOutput,
    NewRequest,
    Phase,
    PromptLogprobs,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
    StepTimings,
)
from common.tensors import DType, WireTensor, wire_tensor
from common.trace_context import TraceContext
from common.worker_api import (
    Rank,
)

# A busy machine makes a slow example, not a wrong one.
unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
counted = st.integers(1, 2**63)
int32s = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
names = st.text(max_size=8)
ranks = st.builds(Rank, replica=uint32, stage=uint32, tensor_parallel=uint32)
step_ids = st.builds(StepId, epoch=counted, generation=counted, step=counted)
keys = st.builds(StepKey, step_id=step_ids, phase=st.sampled_from(Phase))
timings = st.builds(
    StepTimings, compute_start_ns=uint64, compute_end_ns=uint64, wait_input_ns=uint64
)
GRAPH_STATS = st.builds(CudagraphStats, mode=names, num_tokens=uint32, num_padded_tokens=uint32)
sampling = st.builds(
    SamplingParams,
    temperature=float32,
    top_k=uint32,
    top_p=float32,
    min_p=float32,
    seed=uint64,
    num_logprobs=st.none() | uint32,
    num_prompt_logprobs=st.none() | uint32,
)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
editing = st.builds(
    SamplingParams,
    repetition_penalty=float32,
    frequency_penalty=float32,
    presence_penalty=float32,
    min_tokens=st.integers(1, 2**31 - 1),
    end_token_ids=token_ids,
    logit_bias=st.lists(st.tuples(st.integers(0, 2**31 - 1), float32), max_size=3).map(tuple),
    allowed_token_ids=token_ids,
    bad_words=st.lists(token_ids.filter(bool), max_size=3).map(tuple),
    extra_args=st.dictionaries(names, names, max_size=2).map(
        lambda args: tuple(sorted(args.items()))
    ),
)


def column(values: list[int], dtype: str) -> np.ndarray:
    """An array of the dtype a column has."""
    return np.array(values, dtype=dtype)


def same(one: object, other: object) -> bool:
    """Whether two values are equal down to the dtype, shape and bytes of every array."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) and not isinstance(one, Enum):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    return one == other


@st.composite
def scheduler_outputs(draw: st.DrawFn) -> SchedulerOutput:
    """Steps whose parts agree, over one to three KV cache groups."""
    groups = draw(st.integers(1, 3))
    handles = draw(st.lists(uint64, unique=True, max_size=8))
    num_new = draw(st.integers(0, len(handles)))
    new, cached = handles[:num_new], handles[num_new:]
    rows = st.lists(int32s, min_size=len(cached), max_size=len(cached))
    step_id = draw(step_ids)
    return SchedulerOutput(
        step_id=step_id,
        base_step=draw(st.integers(0, step_id.step - 1)),
        new_requests=tuple(draw(new_requests(handle, groups)) for handle in new),
        cached_requests=CachedRequests(
            handles=column(cached, "<u8"),
            num_computed_tokens=column([draw(st.integers(0, 2**31 - 1)) for _ in cached], "<i4"),
            new_block_ids=tuple(Ragged.from_rows(draw(rows)) for _ in range(groups)),
            new_token_ids=Ragged.from_rows(draw(rows)),
            token_source_steps=column([draw(uint64) for _ in cached], "<u8"),
            draft_token_ids=draw(st.none() | rows.map(Ragged.from_rows)),
        ),
        num_scheduled_tokens=column([draw(st.integers(1, 9)) for _ in handles], "<i4"),
        finished_handles=column(draw(st.lists(uint64, unique=True, max_size=3)), "<u8"),
        preempted_handles=column(draw(st.lists(uint64, unique=True, max_size=3)), "<u8"),
        grammar_mask_follows=draw(st.booleans()),
        want_state_digest=draw(st.booleans()),
        num_drafts_wanted=column(
            draw(st.sampled_from([[], [draw(st.integers(0, 9)) for _ in handles]])), "<i4"
        ),
    )


hexadecimal = "0123456789abcdef"
traces = st.builds(
    TraceContext,
    trace_id=st.text(hexadecimal, min_size=31, max_size=31).map(lambda digits: digits + "1"),
    span_id=st.text(hexadecimal, min_size=15, max_size=15).map(lambda digits: digits + "1"),
    flags=st.integers(0, 255),
    state=st.sampled_from(["", "vendor=1", "a=b,c=d"]),
)


@st.composite
def new_requests(draw: st.DrawFn, handle: int, groups: int) -> NewRequest:
    """A request with at least one token left to compute."""
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9))
    return NewRequest(
        handle=handle,
        token_ids=column(tokens, "<i4"),
        num_prompt_tokens=draw(st.integers(1, len(tokens))),
        sampling=draw(sampling | editing),
        block_ids=tuple(column(draw(int32s), "<i4") for _ in range(groups)),
        num_computed_tokens=draw(st.integers(0, len(tokens) - 1)),
        trace=draw(st.none() | traces),
    )


@st.composite
def model_runner_outputs(draw: st.DrawFn, phase: Phase = Phase.SAMPLE) -> ModelRunnerOutput:
    """Outputs whose log-probabilities, if any, cover every sampled token."""
    handles = draw(st.lists(uint64, unique=True, max_size=4))
    sampled = Ragged.from_rows([draw(int32s) for _ in handles])
    positions = len(sampled.values)
    width = draw(st.integers(1, 4))
    logprobs = Logprobs(
        token_ids=np.arange(positions * width, dtype="<i4").reshape(positions, width),
        logprobs=np.linspace(-9, 0, positions * width, dtype="<f4").reshape(positions, width),
        ranks=np.arange(1, positions + 1, dtype="<i4"),
    )
    return ModelRunnerOutput(
        key=StepKey(step_id=draw(step_ids), phase=phase),
        handles=column(handles, "<u8"),
        sampled_token_ids=sampled,
        logprobs=draw(st.none() | st.just(logprobs)),
        prompt_logprobs=tuple(
            PromptLogprobs(handle=handle, first_position=place, logprobs=logprobs)
            for handle, place in draw(st.lists(st.tuples(uint64, uint32), max_size=2))
        ),
        request_errors=tuple(draw(st.lists(st.tuples(uint64, names), max_size=2))),
        timings=draw(timings),
        state_digest=draw(st.none() | st.binary(max_size=32)),
        kv_digest=draw(st.none() | st.binary(max_size=32)),
        cudagraph_stats=draw(st.none() | GRAPH_STATS),
        drafts=draw(st.none() | st.just(Ragged.from_rows([draw(int32s) for _ in handles]))),
    )


@st.composite
def grammar_masks(draw: st.DrawFn) -> GrammarMask:
    """Masks of a few requests, of some positions each."""
    handles = draw(st.lists(uint64, unique=True, max_size=4))
    positions = [draw(st.integers(1, 3)) for _ in handles]
    num_words = draw(st.integers(1, 3)) if handles else 0
    bits = np.arange(sum(positions) * num_words, dtype="<i4").reshape(sum(positions), num_words)
    return GrammarMask(
        handles=column(handles, "<u8"),
        num_positions=np.array(positions, dtype="<i4"),
        bits=bits,
    )


@st.composite
def wire_tensors(draw: st.DrawFn) -> tuple[WireTensor, ...]:
    """Tensors of all dtypes with names that differ."""
    tensors = []
    for name in draw(st.lists(names, unique=True, max_size=3)):
        dtype = draw(st.sampled_from(DType))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        size = int(np.prod(shape, dtype=int)) * dtype.num_bytes
        buffer = memoryview(draw(st.binary(min_size=size, max_size=size)))
        tensors.append(wire_tensor(name=name, dtype=dtype, shape=shape, buffer=buffer))
    return tuple(tensors)


@st.composite
def intermediate_tensors(draw: st.DrawFn) -> IntermediateTensors:
    """Tensors inline or on the channel."""
    tensors = draw(wire_tensors())
    return IntermediateTensors(
        key=StepKey(step_id=draw(step_ids), phase=Phase.EXECUTE),
        descriptors=tuple(tensor.descriptor for tensor in tensors),
        inline=draw(st.sampled_from([None, tensors])),
        timings=draw(timings),
    )
