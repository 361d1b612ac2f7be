"""Control calls and their answers survive protobuf, and what cannot be meant is refused by field."""

import pytest
from stepwire.v1 import worker_pb2

from common.codecs import place_codec, worker_codec
from common.errors import InvalidRequest
from common.speculation import SpeculationConfig
from common.worker_api import (
    Authority,
    BeginGeneration,
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
    quantization="int4",
    speculation=SpeculationConfig(speculative_method="draft_model", draft_model="small"),
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
        num_loads=1,
        quantizations=("int8", "int4"),
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


def test_places():
    """A rank and a shape survive; no field keeps its default here."""
    rank, layout = (
        Rank(replica=1, stage=2, tensor_parallel=3),
        Layout(num_stages=4, tensor_parallel_size=5),
    )
    assert place_codec.decode_rank(place_codec.encode_rank(rank)) == rank
    assert place_codec.decode_layout(place_codec.encode_layout(layout)) == layout


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


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("load_model", "end_layer", {"end_layer": 15}),
        ("load_model", "block_size", {"block_size": 0}),
        ("load_model", "quantization", {"quantization": "int3"}),
        ("load_model", "rank.stage", {"rank": worker_pb2.Rank(stage=2)}),
        ("load_model", "layout.num_stages", {"layout": worker_pb2.Layout(tensor_parallel_size=1)}),
        ("begin_generation", "generation", {"generation": 0}),
        ("begin_generation", "max_steps_in_flight", {"max_steps_in_flight": 0}),
        ("begin_generation", "max_steps_in_flight", {"max_steps_in_flight": 2**32 - 1}),
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
    """A missing authority, a share of nothing, no cache and a rank with two sockets are refused."""
    with pytest.raises(InvalidRequest, match="coordinator_id"):
        worker_codec.decode_authority(worker_pb2.Authority(epoch=1))
    with pytest.raises(InvalidRequest, match="epoch"):
        worker_codec.decode_authority(worker_pb2.Authority(coordinator_id="c"))
    with pytest.raises(InvalidRequest, match="gpu_memory_utilization"):
        worker_codec.decode_memory_budget(worker_pb2.DetermineAvailableMemoryRequest())
    with pytest.raises(InvalidRequest, match="num_blocks"):
        worker_codec.decode_num_blocks(worker_pb2.InitializeKVCacheRequest(num_blocks=1))
    twice = worker_codec.encode_peers((PEERS[0],) * 2, generation=1, authority=AUTHORITY)
    with pytest.raises(InvalidRequest, match="one per rank"):
        worker_codec.decode_peers(twice)
