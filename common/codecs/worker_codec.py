"""Protobuf spelling of the values of `common.worker_api`: control calls and their answers.

Every mutating request carries an Authority, read on its own by `decode_authority(request.authority)`.
Values that cannot be meant raise InvalidRequest naming the field.
"""

from stepwire.v1 import worker_pb2 as pb

from common.codecs.place_codec import (
    decode_place,
    decode_rank,
    encode_layout,
    encode_rank,
    require,
)
from common.codecs.speculation_codec import decode_speculation, encode_speculation
from common.config import NO_QUANTIZATION, QUANTIZATIONS
from common.worker_api import (
    Authority,
    BeginGeneration,
    DevicePhase,
    GenerationReport,
    HeldStage,
    KVCacheGroup,
    KVCacheReport,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    WorkerActivity,
    WorkerInfo,
)

MOST_STEPS = 1024
"""Far more than any pipeline has; a worker keeps room for as many answers and frames."""


def encode_authority(authority: Authority) -> pb.Authority:
    """Spell who commands."""
    return pb.Authority(coordinator_id=authority.coordinator_id, epoch=authority.epoch)


def decode_authority(authority: pb.Authority) -> Authority:
    """Read who commands."""
    require(bool(authority.coordinator_id), "authority.coordinator_id", "must not be empty")
    require(authority.epoch >= 1, "authority.epoch", "must be at least 1")
    return Authority(coordinator_id=authority.coordinator_id, epoch=authority.epoch)


def encode_worker_info(info: WorkerInfo) -> pb.DescribeResponse:
    """Spell what a worker says of itself."""
    return pb.DescribeResponse(
        protocol_min=info.protocol_min,
        protocol_max=info.protocol_max,
        build=info.build,
        incarnation=info.incarnation,
        device=info.device,
        memory_bytes=info.memory_bytes,
        dtypes=info.dtypes,
        tensor_endpoint=info.tensor_endpoint,
        state=info.state,
        epoch=info.epoch,
        generation=info.generation,
        num_threads=info.num_threads,
        held_stage=None if info.held_stage is None else _encode_held_stage(info.held_stage),
        num_loads=info.num_loads,
        quantizations=info.quantizations,
        logits_processors=info.logits_processors,
    )


def decode_worker_info(info: pb.DescribeResponse) -> WorkerInfo:
    """Read what a worker says of itself."""
    return WorkerInfo(
        protocol_min=info.protocol_min,
        protocol_max=info.protocol_max,
        build=info.build,
        incarnation=info.incarnation,
        device=info.device,
        memory_bytes=info.memory_bytes,
        dtypes=tuple(info.dtypes),
        tensor_endpoint=info.tensor_endpoint,
        state=info.state,
        epoch=info.epoch,
        generation=info.generation,
        num_threads=info.num_threads,
        held_stage=_decode_held_stage(info.held_stage) if info.HasField("held_stage") else None,
        num_loads=info.num_loads,
        quantizations=tuple(info.quantizations),
        logits_processors=tuple(info.logits_processors),
    )


def _encode_held_stage(held: HeldStage) -> pb.HeldStage:
    return pb.HeldStage(
        request=encode_load_model(held.request, authority=None),
        report=encode_load_report(held.report),
        num_blocks=held.num_blocks,
        kv_id=held.kv_id,
    )


def _decode_held_stage(held: pb.HeldStage) -> HeldStage:
    return HeldStage(
        request=decode_load_model(held.request),
        report=decode_load_report(held.report),
        num_blocks=held.num_blocks,
        kv_id=held.kv_id,
    )


_PHASES = {
    DevicePhase.IDLE: pb.DEVICE_PHASE_IDLE,
    DevicePhase.WAIT_INPUT: pb.DEVICE_PHASE_WAIT_INPUT,
    DevicePhase.COMPUTE: pb.DEVICE_PHASE_COMPUTE,
    DevicePhase.SENDING: pb.DEVICE_PHASE_SENDING,
    DevicePhase.COMPILING: pb.DEVICE_PHASE_COMPILING,
}
_PHASE_BY_CODE = {code: phase for phase, code in _PHASES.items()}


def encode_activity(activity: WorkerActivity) -> pb.WatchStatusResponse:
    """Spell what a worker is doing."""
    return pb.WatchStatusResponse(
        state=activity.state,
        epoch=activity.epoch,
        generation=activity.generation,
        step=activity.step,
        phase=_PHASES[activity.phase],
        seconds_in_phase=activity.seconds_in_phase,
        waiting_on=None if activity.waiting_on is None else encode_rank(activity.waiting_on),
        kv_id=activity.kv_id,
        is_hung=activity.is_hung,
        num_prefill_tokens=activity.num_prefill_tokens,
    )


def decode_activity(activity: pb.WatchStatusResponse) -> WorkerActivity:
    """Read what a worker is doing."""
    require(activity.phase in _PHASE_BY_CODE, "phase", "must be a phase of the contract")
    return WorkerActivity(
        state=activity.state,
        epoch=activity.epoch,
        generation=activity.generation,
        step=activity.step,
        phase=_PHASE_BY_CODE[activity.phase],
        seconds_in_phase=activity.seconds_in_phase,
        waiting_on=decode_rank(activity.waiting_on) if activity.HasField("waiting_on") else None,
        kv_id=activity.kv_id,
        is_hung=activity.is_hung,
        num_prefill_tokens=activity.num_prefill_tokens,
    )


def encode_load_model(request: LoadModel, *, authority: Authority | None) -> pb.LoadModelRequest:
    """Spell which slice of which model to read; without authority it is no command."""
    return pb.LoadModelRequest(
        authority=None if authority is None else encode_authority(authority),
        model=request.model,
        dtype=request.dtype,
        rank=encode_rank(request.rank),
        layout=encode_layout(request.layout),
        first_layer=request.first_layer,
        end_layer=request.end_layer,
        max_model_len=request.max_model_len,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=request.max_num_seqs,
        block_size=request.block_size,
        quantization=None if request.quantization == NO_QUANTIZATION else request.quantization,
        speculation=encode_speculation(request.speculation),
    )


def decode_load_model(request: pb.LoadModelRequest) -> LoadModel:
    """Read which slice of which model to read; sizes are at least 1 and the slice is not empty."""
    rank, layout = decode_place(request.rank, request.layout)
    require(request.first_layer < request.end_layer, "end_layer", "must be after first_layer")
    for field in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        require(getattr(request, field) >= 1, field, "must be at least 1")
    quantization = request.quantization if request.HasField("quantization") else NO_QUANTIZATION
    require(quantization in QUANTIZATIONS, "quantization", f"must be in {QUANTIZATIONS}")
    return LoadModel(
        model=request.model,
        dtype=request.dtype,
        rank=rank,
        layout=layout,
        first_layer=request.first_layer,
        end_layer=request.end_layer,
        max_model_len=request.max_model_len,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=request.max_num_seqs,
        block_size=request.block_size,
        quantization=quantization,
        speculation=decode_speculation(
            request.speculation if request.HasField("speculation") else None
        ),
    )


def encode_load_report(report: LoadReport) -> pb.LoadModelResponse:
    """Spell what was read."""
    return pb.LoadModelResponse(
        parameter_bytes=report.parameter_bytes,
        bytes_read=report.bytes_read,
        tensors_read=report.tensors_read,
        weights_digest=report.weights_digest,
        dtype=report.dtype,
        seconds=report.seconds,
        table_windows=report.table_windows,
    )


def decode_load_report(report: pb.LoadModelResponse) -> LoadReport:
    """Read what was read."""
    return LoadReport(
        parameter_bytes=report.parameter_bytes,
        bytes_read=report.bytes_read,
        tensors_read=report.tensors_read,
        weights_digest=report.weights_digest,
        dtype=report.dtype,
        seconds=report.seconds,
        table_windows=tuple(report.table_windows) or (0,),
    )


def encode_memory_budget(
    budget: MemoryBudget, *, authority: Authority
) -> pb.DetermineAvailableMemoryRequest:
    """Spell how much the KV cache may use; the share is rounded to float32."""
    return pb.DetermineAvailableMemoryRequest(
        authority=encode_authority(authority),
        kv_cache_bytes=budget.kv_cache_bytes,
        gpu_memory_utilization=budget.gpu_memory_utilization,
    )


def decode_memory_budget(request: pb.DetermineAvailableMemoryRequest) -> MemoryBudget:
    """Read how much the KV cache may use."""
    share = request.gpu_memory_utilization
    require(0 < share <= 1, "gpu_memory_utilization", f"must be in (0, 1], not {share}")
    return MemoryBudget(
        kv_cache_bytes=request.kv_cache_bytes if request.HasField("kv_cache_bytes") else None,
        gpu_memory_utilization=share,
    )


def encode_memory_report(report: MemoryReport) -> pb.DetermineAvailableMemoryResponse:
    """Spell what the profile run found."""
    return pb.DetermineAvailableMemoryResponse(
        kv_cache_bytes=report.kv_cache_bytes,
        activation_bytes=report.activation_bytes,
        profile_seconds=report.profile_seconds,
    )


def decode_memory_report(report: pb.DetermineAvailableMemoryResponse) -> MemoryReport:
    """Read what the profile run found."""
    return MemoryReport(
        kv_cache_bytes=report.kv_cache_bytes,
        activation_bytes=report.activation_bytes,
        profile_seconds=report.profile_seconds,
    )


def encode_kv_cache_spec(spec: KVCacheSpec) -> pb.GetKVCacheSpecResponse:
    """Spell what a KV cache is made of."""
    return pb.GetKVCacheSpecResponse(
        block_size=spec.block_size,
        groups=[
            pb.KVCacheGroup(
                kind=group.kind,
                num_layers=group.num_layers,
                num_kv_heads=group.num_kv_heads,
                head_size=group.head_size,
                bytes_per_block=group.bytes_per_block,
            )
            for group in spec.groups
        ],
    )


def decode_kv_cache_spec(spec: pb.GetKVCacheSpecResponse) -> KVCacheSpec:
    """Read what a KV cache is made of."""
    return KVCacheSpec(
        block_size=spec.block_size,
        groups=tuple(
            KVCacheGroup(
                kind=group.kind,
                num_layers=group.num_layers,
                num_kv_heads=group.num_kv_heads,
                head_size=group.head_size,
                bytes_per_block=group.bytes_per_block,
            )
            for group in spec.groups
        ),
    )


def decode_num_blocks(request: pb.InitializeKVCacheRequest) -> int:
    """Read how many blocks to allocate: the null block and at least one more."""
    require(request.num_blocks >= 2, "num_blocks", "must be at least 2")
    return request.num_blocks


def encode_kv_cache_report(report: KVCacheReport) -> pb.InitializeKVCacheResponse:
    """Spell that the cache stands."""
    return pb.InitializeKVCacheResponse(kv_id=report.kv_id, kv_cache_bytes=report.kv_cache_bytes)


def decode_kv_cache_report(report: pb.InitializeKVCacheResponse) -> KVCacheReport:
    """Read that the cache stands."""
    return KVCacheReport(kv_id=report.kv_id, kv_cache_bytes=report.kv_cache_bytes)


def encode_begin_generation(
    request: BeginGeneration, *, authority: Authority
) -> pb.BeginGenerationRequest:
    """Spell the start of a generation."""
    return pb.BeginGenerationRequest(
        authority=encode_authority(authority),
        generation=request.generation,
        rank=encode_rank(request.rank),
        layout=encode_layout(request.layout),
        max_steps_in_flight=request.max_steps_in_flight,
    )


def decode_begin_generation(request: pb.BeginGenerationRequest) -> BeginGeneration:
    """Read the start of a generation."""
    rank, layout = decode_place(request.rank, request.layout)
    require(request.generation >= 1, "generation", "must be at least 1")
    steps = request.max_steps_in_flight
    require(1 <= steps <= MOST_STEPS, "max_steps_in_flight", f"must be from 1 to {MOST_STEPS}")
    return BeginGeneration(
        generation=request.generation,
        rank=rank,
        layout=layout,
        max_steps_in_flight=steps,
    )


def encode_generation_report(report: GenerationReport) -> pb.BeginGenerationResponse:
    """Spell the ids of a worker that joined."""
    return pb.BeginGenerationResponse(
        incarnation=report.incarnation,
        kv_id=report.kv_id,
        weights_digest=report.weights_digest,
    )


def decode_generation_report(report: pb.BeginGenerationResponse) -> GenerationReport:
    """Read the ids of a worker that joined."""
    return GenerationReport(
        incarnation=report.incarnation,
        kv_id=report.kv_id,
        weights_digest=report.weights_digest,
    )


def encode_peers(
    peers: tuple[Peer, ...], *, generation: int, authority: Authority
) -> pb.ConnectPeersRequest:
    """Spell the tensor sockets of a replica."""
    return pb.ConnectPeersRequest(
        authority=encode_authority(authority),
        generation=generation,
        peers=[
            pb.Peer(rank=encode_rank(peer.rank), tensor_endpoint=peer.tensor_endpoint)
            for peer in peers
        ],
    )


def decode_peers(request: pb.ConnectPeersRequest) -> tuple[Peer, ...]:
    """Read the tensor sockets of a replica, whose ranks must differ."""
    peers = tuple(
        Peer(rank=decode_rank(peer.rank), tensor_endpoint=peer.tensor_endpoint)
        for peer in request.peers
    )
    require(len({peer.rank for peer in peers}) == len(peers), "peers", "must have one per rank")
    return peers
