"""Values survive protobuf, malformed messages are refused by field, and old bytes still decode."""

from dataclasses import fields, is_dataclass
from enum import Enum

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepwire.v1 import channel_pb2, step_pb2, tensor_pb2, worker_pb2

from common.codecs import result_codec, step_codec, stream_codec, tensor_codec, worker_codec
from common.codecs.channel_codec import (
    HelloHeader,
    TensorsHeader,
    decode_channel_header,
    encode_channel_header,
)
from common.codecs.columns import decode_ragged
from common.errors import InvalidRequest, InvalidStep, TensorError, WrongOrder
from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    ExecutePending,
    IntermediateTensors,
    Logprobs,
    ModelRunnerOutput,
    NewRequest,
    Phase,
    Ragged,
    SchedulerOutput,
    StepId,
    StepKey,
    StepTimings,
)
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import (
    Authority,
    BeginGeneration,
    ExecuteModel,
    GenerationReport,
    KVCacheGroup,
    KVCacheReport,
    KVCacheSpec,
    Layout,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    Rank,
    WorkerInfo,
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
sampling = st.builds(
    SamplingParams,
    temperature=float32,
    top_k=uint32,
    top_p=float32,
    min_p=float32,
    seed=uint64,
    num_logprobs=st.none() | uint32,
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
        ),
        num_scheduled_tokens=column([draw(st.integers(1, 9)) for _ in handles], "<i4"),
        finished_handles=column(draw(st.lists(uint64, unique=True, max_size=3)), "<u8"),
        preempted_handles=column(draw(st.lists(uint64, unique=True, max_size=3)), "<u8"),
        grammar_mask_follows=draw(st.booleans()),
        want_state_digest=draw(st.booleans()),
    )


@st.composite
def new_requests(draw: st.DrawFn, handle: int, groups: int) -> NewRequest:
    """A request with at least one token left to compute."""
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9))
    return NewRequest(
        handle=handle,
        token_ids=column(tokens, "<i4"),
        num_prompt_tokens=draw(st.integers(1, len(tokens))),
        sampling=draw(sampling),
        block_ids=tuple(column(draw(int32s), "<i4") for _ in range(groups)),
        num_computed_tokens=draw(st.integers(0, len(tokens) - 1)),
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
        request_errors=tuple(draw(st.lists(st.tuples(uint64, names), max_size=2))),
        timings=draw(timings),
        state_digest=draw(st.none() | st.binary(max_size=32)),
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


# Round trips.


@unhurried
@given(scheduler_outputs())
def test_scheduler_output(output):
    """A step survives, through bytes, with every column's dtype."""
    spelled = step_codec.encode_scheduler_output(output).SerializeToString()
    decoded = step_codec.decode_scheduler_output(step_pb2.SchedulerOutput.FromString(spelled))
    assert same(output, decoded)


@unhurried
@given(model_runner_outputs())
def test_model_runner_output(output):
    """What a step produced survives, through bytes."""
    spelled = result_codec.encode_model_runner_output(output).SerializeToString()
    decoded = result_codec.decode_model_runner_output(
        step_pb2.ModelRunnerOutput.FromString(spelled)
    )
    assert same(output, decoded)


@unhurried
@given(intermediate_tensors())
def test_intermediate_tensors(tensors):
    """What a stage hands on survives, inline and on the channel."""
    spelled = result_codec.encode_intermediate_tensors(tensors).SerializeToString()
    decoded = result_codec.decode_intermediate_tensors(
        step_pb2.IntermediateTensors.FromString(spelled)
    )
    assert same(tensors, decoded)


@unhurried
@given(scheduler_outputs(), st.none() | intermediate_tensors(), st.booleans(), st.booleans())
def test_execute_item(output, tensors, inline_reply, sample):
    """An execute item of the step stream survives, with the previous stage's tensors if any."""
    request = ExecuteModel(
        scheduler_output=output, intermediate_tensors=tensors, inline_reply=inline_reply
    )
    item = stream_codec.encode_stream_item(request, sample=sample)
    assert same(stream_codec.decode_stream_item(item), (request, sample))


@unhurried
@given(step_ids)
def test_sample_item(step_id):
    """A sample item of the step stream survives."""
    item = stream_codec.encode_stream_item(step_id, sample=False)
    assert stream_codec.decode_stream_item(item) == (step_id, True)


@unhurried
@given(
    intermediate_tensors()
    | model_runner_outputs(Phase.SAMPLE)
    | model_runner_outputs(Phase.EXECUTE)
    | st.builds(
        ExecutePending, key=st.builds(StepKey, step_id=step_ids, phase=st.just(Phase.EXECUTE))
    )
)
def test_stream_answer(result):
    """Every kind of answer on the step stream survives, with the key it answers."""
    answer = stream_codec.encode_stream_answer(result, result.key)
    assert same(stream_codec.decode_stream_answer(answer), (result.key, result))


@unhurried
@given(keys, names)
def test_stream_error(key, message):
    """A refusal on the step stream survives with its class, message and key."""
    answer = stream_codec.encode_stream_answer(WrongOrder(message), key)
    answered, error = stream_codec.decode_stream_answer(answer)
    assert (answered, type(error), str(error)) == (key, WrongOrder, message)


@unhurried
@given(ranks, keys, wire_tensors())
def test_channel_header(rank, key, tensors):
    """The header of a tensor message survives."""
    header = TensorsHeader(
        sender=rank, key=key, descriptors=tuple(tensor.descriptor for tensor in tensors)
    )
    assert decode_channel_header(encode_channel_header(header)) == header
    hello = HelloHeader(epoch=7, generation=8, sender=rank)
    assert decode_channel_header(encode_channel_header(hello)) == hello


AUTHORITY = Authority(coordinator_id="c0ffee", epoch=3)
RANK, LAYOUT = Rank(stage=1), Layout(num_stages=2)
LOAD = LoadModel(
    model="smollm2-135m",
    dtype="auto",
    rank=RANK,
    layout=LAYOUT,
    first_layer=15,
    end_layer=30,
    max_model_len=2048,
    max_num_batched_tokens=512,
    max_num_seqs=64,
    block_size=16,
)
BEGIN = BeginGeneration(generation=2, rank=RANK, layout=LAYOUT, max_steps_in_flight=3)
PEERS = (
    Peer(rank=Rank(), tensor_endpoint="a:1"),
    Peer(rank=RANK, tensor_endpoint="[::1]:2"),
)
GROUP = KVCacheGroup(
    kind="full", num_layers=15, num_kv_heads=3, head_size=64, bytes_per_block=1 << 40
)
ANSWERS = {
    "worker_info": WorkerInfo(
        protocol_min=1,
        protocol_max=2,
        build="0.1.0",
        incarnation="f00d",
        device="cpu",
        memory_bytes=1 << 40,
        dtypes=("float32", "bfloat16"),
        tensor_endpoint="127.0.0.1:5",
        state="SERVING",
        epoch=3,
        generation=4,
        num_threads=2,
    ),
    "load_report": LoadReport(
        parameter_bytes=1 << 33,
        bytes_read=1 << 34,
        tensors_read=300,
        weights_digest="abc",
        dtype="bfloat16",
        seconds=1.25,
    ),
    "memory_report": MemoryReport(
        kv_cache_bytes=1 << 40, activation_bytes=1 << 35, profile_seconds=0.5
    ),
    "kv_cache_spec": KVCacheSpec(block_size=16, groups=(GROUP, GROUP)),
    "kv_cache_report": KVCacheReport(kv_id="beef", kv_cache_bytes=1 << 40),
    "generation_report": GenerationReport(incarnation="f00d", kv_id="beef", weights_digest="abc"),
    "rank": Rank(replica=1, stage=2, tensor_parallel=3),
    "layout": Layout(num_stages=4, tensor_parallel_size=2),
    "authority": AUTHORITY,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_worker_answers(name):
    """Every answer to a control call survives; no field keeps its default here."""
    value = ANSWERS[name]
    spelled = getattr(worker_codec, f"encode_{name}")(value)
    decoded = getattr(worker_codec, f"decode_{name}")(
        type(spelled).FromString(spelled.SerializeToString())
    )
    assert decoded == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load_model", LOAD),
        ("memory_budget", MemoryBudget(kv_cache_bytes=1 << 40, gpu_memory_utilization=0.5)),
        ("memory_budget", MemoryBudget(kv_cache_bytes=None, gpu_memory_utilization=0.5)),
        ("begin_generation", BEGIN),
    ],
)
def test_worker_requests(name, value):
    """Every control call survives with who commands."""
    spelled = getattr(worker_codec, f"encode_{name}")(value, authority=AUTHORITY)
    assert getattr(worker_codec, f"decode_{name}")(spelled) == value
    assert worker_codec.decode_authority(spelled.authority) == AUTHORITY


def test_peers():
    """The peers of a replica survive, with the generation and who commands."""
    spelled = worker_codec.encode_peers(PEERS, generation=4, authority=AUTHORITY)
    assert worker_codec.decode_peers(spelled) == PEERS
    assert spelled.generation == 4
    assert worker_codec.decode_authority(spelled.authority) == AUTHORITY


# Malformed messages.


def a_step() -> step_pb2.SchedulerOutput:
    """A valid step of one new and two cached requests over one KV cache group."""
    return step_codec.encode_scheduler_output(
        SchedulerOutput(
            step_id=StepId(epoch=1, generation=2, step=3),
            base_step=2,
            new_requests=(
                NewRequest(
                    handle=10,
                    token_ids=column([1, 2, 3], "<i4"),
                    num_prompt_tokens=3,
                    sampling=SamplingParams(seed=7),
                    block_ids=(column([4], "<i4"),),
                    num_computed_tokens=0,
                ),
            ),
            cached_requests=CachedRequests(
                handles=column([11, 12], "<u8"),
                num_computed_tokens=column([5, 6], "<i4"),
                new_block_ids=(Ragged.from_rows([[], [9]]),),
                new_token_ids=Ragged.from_rows([[1], [2]]),
                token_source_steps=column([0, 2], "<u8"),
            ),
            num_scheduled_tokens=column([3, 1, 1], "<i4"),
            finished_handles=column([1, 2], "<u8"),
            preempted_handles=column([3], "<u8"),
        )
    )


def uint32s(*values: int) -> bytes:
    """The bytes of an offsets column."""
    return column(list(values), "<u4").tobytes()


def uint64s(*values: int) -> bytes:
    """The bytes of a handles column."""
    return column(list(values), "<u8").tobytes()


BROKEN_STEPS = {
    "epoch": lambda step: step.ClearField("epoch"),
    "generation": lambda step: step.ClearField("generation"),
    "base_step": lambda step: setattr(step, "base_step", 3),
    r"new_requests\[0\].token_ids": lambda step: _set(step.new_requests[0], token_ids=b"12345"),
    r"new_requests\[0\].num_prompt_tokens": lambda step: _set(
        step.new_requests[0], num_prompt_tokens=4
    ),
    r"new_requests\[0\].num_computed_tokens": lambda step: _set(
        step.new_requests[0], num_computed_tokens=3
    ),
    r"new_requests\[0\].sampling": lambda step: step.new_requests[0].ClearField("sampling"),
    r"new_requests\[0\].block_ids: missing": lambda step: step.new_requests[0].ClearField(
        "block_ids"
    ),
    r"new_requests\[0\].block_ids.offsets": lambda step: _set(
        step.new_requests[0].block_ids, offsets=uint32s(0, 2)
    ),
    "cached_requests.handles": lambda step: _set(step.cached_requests, handles=b"1" * 15),
    "cached_requests.num_computed_tokens": lambda step: _set(
        step.cached_requests, num_computed_tokens=uint32s(1)
    ),
    r"cached_requests.new_block_ids\[0\].values": lambda step: _set(
        step.cached_requests.new_block_ids[0], values=b"123"
    ),
    "cached_requests.new_token_ids.offsets: 2": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 2)
    ),
    "cached_requests.new_token_ids.offsets: the first": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(1, 1, 2)
    ),
    "cached_requests.new_token_ids.offsets: the last": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 1, 3)
    ),
    "cached_requests.new_token_ids.offsets: the entries decrease": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 9, 2)
    ),
    "cached_requests.token_source_steps": lambda step: _set(
        step.cached_requests, token_source_steps=uint64s(1)
    ),
    "num_scheduled_tokens": lambda step: _set(step, num_scheduled_tokens=uint32s(1, 1)),
    "handles: handle 10": lambda step: _set(step.cached_requests, handles=uint64s(11, 10)),
    "finished_handles: handle 5": lambda step: _set(step, finished_handles=uint64s(5, 5)),
    "preempted_handles": lambda step: _set(step, preempted_handles=b"1"),
    "block_ids: rows disagree": lambda step: step.cached_requests.new_block_ids.add(
        offsets=uint32s(0, 0, 0)
    ),
}


def _set(message, **values) -> None:
    for name, value in values.items():
        setattr(message, name, value)


@pytest.mark.parametrize("field", BROKEN_STEPS)
def test_broken_step_names_the_field(field):
    """Each way a step can be malformed is InvalidStep, whose message starts with the field."""
    step = a_step()
    step_codec.decode_scheduler_output(step)
    BROKEN_STEPS[field](step)
    with pytest.raises(InvalidStep, match=f"^{field}"):
        step_codec.decode_scheduler_output(step)


@unhurried
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_ragged_column(values, offsets):
    """Whatever bytes come, a ragged column is refused or all its rows can be read."""
    try:
        ragged = decode_ragged(
            step_pb2.RaggedColumn(values=values, offsets=offsets), field="column"
        )
    except InvalidStep:
        return
    rows = [ragged.row(index) for index in range(ragged.num_rows)]
    assert b"".join(row.tobytes() for row in rows) == values


def test_unknown_enum_values():
    """Phases, element types and payload kinds that are not known are refused."""
    with pytest.raises(InvalidStep, match=r"key\.phase"):
        step_codec.decode_step_key(step_pb2.StepKey(epoch=1, generation=1, step=1, phase=9))
    with pytest.raises(TensorError, match="element type 77"):
        tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(name="h", dtype=77))
    no_payload = step_pb2.IntermediateTensors(key=a_key())
    with pytest.raises(TensorError, match="payload"):
        result_codec.decode_intermediate_tensors(no_payload)
    with pytest.raises(InvalidStep, match="item"):
        stream_codec.decode_stream_item(worker_pb2.RunStepsRequest())
    with pytest.raises(InvalidStep, match="item"):
        stream_codec.decode_stream_answer(worker_pb2.RunStepsResponse())


def a_key() -> step_pb2.StepKey:
    """The execute phase of step 1."""
    return step_pb2.StepKey(epoch=1, generation=1, step=1, phase=step_pb2.PHASE_EXECUTE)


def test_sample_needs_its_phase():
    """A sample call whose key says execute is refused."""
    with pytest.raises(InvalidStep, match=r"key\.phase"):
        stream_codec.decode_sample_tokens(worker_pb2.SampleTokensRequest(key=a_key()))


def test_broken_results():
    """Result columns that disagree are refused by field."""
    output = step_pb2.ModelRunnerOutput(
        key=a_key(),
        handles=uint64s(1),
        sampled_token_ids=step_pb2.RaggedColumn(values=uint32s(5), offsets=uint32s(0, 1)),
        logprobs=step_pb2.Logprobs(
            num_alternatives=1, token_ids=uint32s(5, 6), logprobs=uint32s(0, 0), ranks=uint32s(1)
        ),
    )
    result_codec.decode_model_runner_output(output)
    for field, broken in {
        "logprobs.token_ids": step_pb2.Logprobs(num_alternatives=2),
        "logprobs.ranks": step_pb2.Logprobs(token_ids=uint32s(5), logprobs=uint32s(0)),
    }.items():
        output.logprobs.CopyFrom(broken)
        with pytest.raises(InvalidStep, match=field):
            result_codec.decode_model_runner_output(output)
    output.handles = uint64s(1, 2)
    with pytest.raises(InvalidStep, match="sampled_token_ids"):
        result_codec.decode_model_runner_output(output)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [-1]},
        {"shape": [2]},
        {"num_bytes": 8},
        {"shape": [1] * 9},
        {"shape": [2**40], "num_bytes": 2**42},
        {"shape": [2**62, 2**62], "num_bytes": 2**63},
    ],
)
def test_impossible_descriptors(change):
    """Shapes and sizes that cannot be are refused before anything of that size is made."""
    good = {"name": "h", "dtype": tensor_pb2.ELEMENT_TYPE_FLOAT32, "shape": [1], "num_bytes": 4}
    tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(**good))
    with pytest.raises(TensorError, match="'h'"):
        tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(**{**good, **change}))


def test_inline_bytes_are_verified():
    """Inline tensors with missing, short or altered bytes, or one name twice, are refused."""
    tensor = wire_tensor(name="h", dtype=DType.UINT8, shape=(4,), buffer=memoryview(b"abcd"))
    spelled = result_codec.encode_intermediate_tensors(
        IntermediateTensors(
            key=step_codec.decode_step_key(a_key()),
            descriptors=(tensor.descriptor,),
            inline=(tensor,),
        )
    )
    for payload, cause in (([], "0 payloads"), ([b"abc"], "3 bytes"), ([b"abce"], "damaged")):
        spelled.inline.tensors[:] = payload
        with pytest.raises(TensorError, match=cause):
            result_codec.decode_intermediate_tensors(spelled)
    spelled.inline.tensors[:] = [b"abcd", b"abcd"]
    spelled.descriptors.append(spelled.descriptors[0])
    with pytest.raises(TensorError, match="repeat"):
        result_codec.decode_intermediate_tensors(spelled)


@unhurried
@given(st.binary(max_size=60))
def test_any_channel_header(part):
    """Whatever bytes come, a header is read or refused with TensorError."""
    try:
        header = decode_channel_header(part)
    except TensorError:
        return
    assert decode_channel_header(encode_channel_header(header)) == header


def test_header_of_two_generations():
    """A header whose key is of another generation than the header is refused."""
    header = channel_pb2.ChannelHeader(
        epoch=1, generation=2, tensors=channel_pb2.ChannelTensors(key=a_key())
    )
    with pytest.raises(TensorError, match="another generation"):
        decode_channel_header(header.SerializeToString())


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("load_model", "end_layer", {"end_layer": 15}),
        ("load_model", "block_size", {"block_size": 0}),
        ("load_model", "rank.stage", {"rank": worker_pb2.Rank(stage=2)}),
        ("load_model", "layout.num_stages", {"layout": worker_pb2.Layout(tensor_parallel_size=1)}),
        ("begin_generation", "generation", {"generation": 0}),
        ("begin_generation", "max_steps_in_flight", {"max_steps_in_flight": 0}),
        ("begin_generation", "rank.tensor_parallel", {"rank": worker_pb2.Rank(tensor_parallel=1)}),
    ],
)
def test_broken_control_calls(name, field, change):
    """A control call that cannot be meant is InvalidRequest with the field as its param."""
    value = {"load_model": LOAD, "begin_generation": BEGIN}[name]
    spelled = getattr(worker_codec, f"encode_{name}")(value, authority=AUTHORITY)
    for part, new in change.items():
        spelled.ClearField(part)
        spelled.MergeFrom(type(spelled)(**{part: new}))
    with pytest.raises(InvalidRequest) as caught:
        getattr(worker_codec, f"decode_{name}")(spelled)
    assert caught.value.param == field


def test_other_broken_control_calls():
    """A missing authority, a share of nothing and a rank with two sockets are refused."""
    with pytest.raises(InvalidRequest, match="coordinator_id"):
        worker_codec.decode_authority(worker_pb2.Authority(epoch=1))
    with pytest.raises(InvalidRequest, match="epoch"):
        worker_codec.decode_authority(worker_pb2.Authority(coordinator_id="c"))
    with pytest.raises(InvalidRequest, match="gpu_memory_utilization"):
        worker_codec.decode_memory_budget(worker_pb2.DetermineAvailableMemoryRequest())
    twice = worker_codec.encode_peers((PEERS[0],) * 2, generation=1, authority=AUTHORITY)
    with pytest.raises(InvalidRequest, match="one per rank"):
        worker_codec.decode_peers(twice)


# What columns are for.


def test_decoding_copies_nothing():
    """Columns are views of the message's bytes, in both directions of a step."""
    step = a_step()
    decoded = step_codec.decode_scheduler_output(step)
    columns = [
        decoded.cached_requests.handles,
        decoded.cached_requests.new_token_ids.values,
        decoded.num_scheduled_tokens,
        decoded.new_requests[0].token_ids,
    ]
    assert not any(each.flags.owndata or each.flags.writeable for each in columns)


def test_no_token_sources_cost_nothing():
    """A step whose tokens all come from the coordinator carries no source column."""
    step = step_codec.encode_scheduler_output(
        SchedulerOutput(step_id=StepId(epoch=1, generation=1, step=1), base_step=0)
    )
    assert step.cached_requests.token_source_steps == b""
    assert len(step_codec.decode_scheduler_output(step).cached_requests.token_source_steps) == 0


def test_golden_bytes():
    """Bytes written by contract version 1 decode to the same step as ever."""
    assert a_step().SerializeToString(deterministic=True).hex() == GOLDEN_STEP
    decoded = step_codec.decode_scheduler_output(
        step_pb2.SchedulerOutput.FromString(bytes.fromhex(GOLDEN_STEP))
    )
    assert decoded.step_id == StepId(epoch=1, generation=2, step=3)
    assert decoded.cached_requests.handles.tolist() == [11, 12]
    assert decoded.cached_requests.new_block_ids[0].row(1).tolist() == [9]
    assert decoded.new_requests[0].token_ids.tolist() == [1, 2, 3]
    assert decoded.new_requests[0].sampling.seed == 7


GOLDEN_STEP = (
    "08011002180320022a32080a120c0100000002000000030000001803220c0d0000803f1d0000803f28072a10"
    "0a040400000012080000000001000000325e0a100b000000000000000c000000000000001208050000000600"
    "00001a140a0409000000120c00000000000000000100000022180a080100000002000000120c000000000100"
    "0000020000002a10000000000000000002000000000000003a0c030000000100000001000000421001000000"
    "0000000002000000000000004a080300000000000000"
)
