from stepwire.v1 import step_pb2 as _step_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_ERROR_CODE_UNSPECIFIED: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_INVALID: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_WRONG_ORDER: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_NEED_RESYNC: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_STALE: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_FENCED: _ClassVar[StepErrorCode]
    STEP_ERROR_CODE_INTERNAL: _ClassVar[StepErrorCode]

class DevicePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_PHASE_UNSPECIFIED: _ClassVar[DevicePhase]
    DEVICE_PHASE_IDLE: _ClassVar[DevicePhase]
    DEVICE_PHASE_WAIT_INPUT: _ClassVar[DevicePhase]
    DEVICE_PHASE_COMPUTE: _ClassVar[DevicePhase]
    DEVICE_PHASE_SENDING: _ClassVar[DevicePhase]
    DEVICE_PHASE_COMPILING: _ClassVar[DevicePhase]
STEP_ERROR_CODE_UNSPECIFIED: StepErrorCode
STEP_ERROR_CODE_INVALID: StepErrorCode
STEP_ERROR_CODE_WRONG_ORDER: StepErrorCode
STEP_ERROR_CODE_NEED_RESYNC: StepErrorCode
STEP_ERROR_CODE_STALE: StepErrorCode
STEP_ERROR_CODE_FENCED: StepErrorCode
STEP_ERROR_CODE_INTERNAL: StepErrorCode
DEVICE_PHASE_UNSPECIFIED: DevicePhase
DEVICE_PHASE_IDLE: DevicePhase
DEVICE_PHASE_WAIT_INPUT: DevicePhase
DEVICE_PHASE_COMPUTE: DevicePhase
DEVICE_PHASE_SENDING: DevicePhase
DEVICE_PHASE_COMPILING: DevicePhase

class Rank(_message.Message):
    __slots__ = ("replica", "stage", "tensor_parallel")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    replica: int
    stage: int
    tensor_parallel: int
    def __init__(self, replica: _Optional[int] = ..., stage: _Optional[int] = ..., tensor_parallel: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("num_stages", "tensor_parallel_size")
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    num_stages: int
    tensor_parallel_size: int
    def __init__(self, num_stages: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ...) -> None: ...

class Authority(_message.Message):
    __slots__ = ("coordinator_id", "epoch")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    epoch: int
    def __init__(self, coordinator_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "build", "incarnation", "device", "memory_bytes", "dtypes", "tensor_endpoint", "state", "epoch", "generation", "num_threads", "held_stage", "num_loads", "quantizations", "logits_processors")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    HELD_STAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADS_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATIONS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    build: str
    incarnation: str
    device: str
    memory_bytes: int
    dtypes: _containers.RepeatedScalarFieldContainer[str]
    tensor_endpoint: str
    state: str
    epoch: int
    generation: int
    num_threads: int
    held_stage: HeldStage
    num_loads: int
    quantizations: _containers.RepeatedScalarFieldContainer[str]
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., build: _Optional[str] = ..., incarnation: _Optional[str] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., dtypes: _Optional[_Iterable[str]] = ..., tensor_endpoint: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., num_threads: _Optional[int] = ..., held_stage: _Optional[_Union[HeldStage, _Mapping]] = ..., num_loads: _Optional[int] = ..., quantizations: _Optional[_Iterable[str]] = ..., logits_processors: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldStage(_message.Message):
    __slots__ = ("request", "report", "num_blocks", "kv_id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_ID_FIELD_NUMBER: _ClassVar[int]
    request: LoadModelRequest
    report: LoadModelResponse
    num_blocks: int
    kv_id: str
    def __init__(self, request: _Optional[_Union[LoadModelRequest, _Mapping]] = ..., report: _Optional[_Union[LoadModelResponse, _Mapping]] = ..., num_blocks: _Optional[int] = ..., kv_id: _Optional[str] = ...) -> None: ...

class InitDeviceRequest(_message.Message):
    __slots__ = ("authority",)
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ...) -> None: ...

class InitDeviceResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("authority", "model", "dtype", "rank", "layout", "first_layer", "end_layer", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "quantization", "speculation")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    END_LAYER_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    model: str
    dtype: str
    rank: Rank
    layout: Layout
    first_layer: int
    end_layer: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    quantization: str
    speculation: Speculation
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., model: _Optional[str] = ..., dtype: _Optional[str] = ..., rank: _Optional[_Union[Rank, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., first_layer: _Optional[int] = ..., end_layer: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., block_size: _Optional[int] = ..., quantization: _Optional[str] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_model")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOOKUP_MIN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOOKUP_MAX_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    method: str
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    draft_model: str
    def __init__(self, method: _Optional[str] = ..., num_speculative_tokens: _Optional[int] = ..., prompt_lookup_min: _Optional[int] = ..., prompt_lookup_max: _Optional[int] = ..., draft_model: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("parameter_bytes", "bytes_read", "tensors_read", "weights_digest", "dtype", "seconds", "table_windows")
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    TENSORS_READ_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TABLE_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    parameter_bytes: int
    bytes_read: int
    tensors_read: int
    weights_digest: str
    dtype: str
    seconds: float
    table_windows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameter_bytes: _Optional[int] = ..., bytes_read: _Optional[int] = ..., tensors_read: _Optional[int] = ..., weights_digest: _Optional[str] = ..., dtype: _Optional[str] = ..., seconds: _Optional[float] = ..., table_windows: _Optional[_Iterable[int]] = ...) -> None: ...

class DetermineAvailableMemoryRequest(_message.Message):
    __slots__ = ("authority", "kv_cache_bytes", "gpu_memory_utilization")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    kv_cache_bytes: int
    gpu_memory_utilization: float
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., kv_cache_bytes: _Optional[int] = ..., gpu_memory_utilization: _Optional[float] = ...) -> None: ...

class DetermineAvailableMemoryResponse(_message.Message):
    __slots__ = ("kv_cache_bytes", "activation_bytes", "profile_seconds")
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kv_cache_bytes: int
    activation_bytes: int
    profile_seconds: float
    def __init__(self, kv_cache_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., profile_seconds: _Optional[float] = ...) -> None: ...

class GetKVCacheSpecRequest(_message.Message):
    __slots__ = ("authority",)
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ...) -> None: ...

class KVCacheGroup(_message.Message):
    __slots__ = ("kind", "num_layers", "num_kv_heads", "head_size", "bytes_per_block")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    kind: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    bytes_per_block: int
    def __init__(self, kind: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., bytes_per_block: _Optional[int] = ...) -> None: ...

class GetKVCacheSpecResponse(_message.Message):
    __slots__ = ("block_size", "groups")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    groups: _containers.RepeatedCompositeFieldContainer[KVCacheGroup]
    def __init__(self, block_size: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[KVCacheGroup, _Mapping]]] = ...) -> None: ...

class InitializeKVCacheRequest(_message.Message):
    __slots__ = ("authority", "num_blocks")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    num_blocks: int
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class InitializeKVCacheResponse(_message.Message):
    __slots__ = ("kv_id", "kv_cache_bytes")
    KV_ID_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    kv_id: str
    kv_cache_bytes: int
    def __init__(self, kv_id: _Optional[str] = ..., kv_cache_bytes: _Optional[int] = ...) -> None: ...

class CompileOrWarmUpRequest(_message.Message):
    __slots__ = ("authority",)
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ...) -> None: ...

class CompileOrWarmUpResponse(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class BeginGenerationRequest(_message.Message):
    __slots__ = ("authority", "generation", "rank", "layout", "max_steps_in_flight")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    generation: int
    rank: Rank
    layout: Layout
    max_steps_in_flight: int
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., generation: _Optional[int] = ..., rank: _Optional[_Union[Rank, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., max_steps_in_flight: _Optional[int] = ...) -> None: ...

class BeginGenerationResponse(_message.Message):
    __slots__ = ("incarnation", "kv_id", "weights_digest")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KV_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    kv_id: str
    weights_digest: str
    def __init__(self, incarnation: _Optional[str] = ..., kv_id: _Optional[str] = ..., weights_digest: _Optional[str] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "tensor_endpoint")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    rank: Rank
    tensor_endpoint: str
    def __init__(self, rank: _Optional[_Union[Rank, _Mapping]] = ..., tensor_endpoint: _Optional[str] = ...) -> None: ...

class ConnectPeersRequest(_message.Message):
    __slots__ = ("authority", "generation", "peers")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    generation: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., generation: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class ConnectPeersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndGenerationRequest(_message.Message):
    __slots__ = ("authority", "generation")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    generation: int
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class EndGenerationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExecuteModelRequest(_message.Message):
    __slots__ = ("scheduler_output", "intermediate_tensors", "inline_reply", "deadline_ms")
    SCHEDULER_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    INLINE_REPLY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    scheduler_output: _step_pb2.SchedulerOutput
    intermediate_tensors: _step_pb2.IntermediateTensors
    inline_reply: bool
    deadline_ms: int
    def __init__(self, scheduler_output: _Optional[_Union[_step_pb2.SchedulerOutput, _Mapping]] = ..., intermediate_tensors: _Optional[_Union[_step_pb2.IntermediateTensors, _Mapping]] = ..., inline_reply: bool = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ExecuteModelResponse(_message.Message):
    __slots__ = ("key", "intermediate_tensors", "model_runner_output")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    MODEL_RUNNER_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    key: _step_pb2.StepKey
    intermediate_tensors: _step_pb2.IntermediateTensors
    model_runner_output: _step_pb2.ModelRunnerOutput
    def __init__(self, key: _Optional[_Union[_step_pb2.StepKey, _Mapping]] = ..., intermediate_tensors: _Optional[_Union[_step_pb2.IntermediateTensors, _Mapping]] = ..., model_runner_output: _Optional[_Union[_step_pb2.ModelRunnerOutput, _Mapping]] = ...) -> None: ...

class SampleTokensRequest(_message.Message):
    __slots__ = ("key", "grammar_mask")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_MASK_FIELD_NUMBER: _ClassVar[int]
    key: _step_pb2.StepKey
    grammar_mask: _step_pb2.GrammarMask
    def __init__(self, key: _Optional[_Union[_step_pb2.StepKey, _Mapping]] = ..., grammar_mask: _Optional[_Union[_step_pb2.GrammarMask, _Mapping]] = ...) -> None: ...

class SampleTokensResponse(_message.Message):
    __slots__ = ("model_runner_output",)
    MODEL_RUNNER_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    model_runner_output: _step_pb2.ModelRunnerOutput
    def __init__(self, model_runner_output: _Optional[_Union[_step_pb2.ModelRunnerOutput, _Mapping]] = ...) -> None: ...

class RunStepsRequest(_message.Message):
    __slots__ = ("execute", "sample", "sample_with_execute")
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_WITH_EXECUTE_FIELD_NUMBER: _ClassVar[int]
    execute: ExecuteModelRequest
    sample: SampleTokensRequest
    sample_with_execute: bool
    def __init__(self, execute: _Optional[_Union[ExecuteModelRequest, _Mapping]] = ..., sample: _Optional[_Union[SampleTokensRequest, _Mapping]] = ..., sample_with_execute: bool = ...) -> None: ...

class StepError(_message.Message):
    __slots__ = ("key", "code", "message")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    key: _step_pb2.StepKey
    code: StepErrorCode
    message: str
    def __init__(self, key: _Optional[_Union[_step_pb2.StepKey, _Mapping]] = ..., code: _Optional[_Union[StepErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RunStepsResponse(_message.Message):
    __slots__ = ("execute", "sample", "error")
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    execute: ExecuteModelResponse
    sample: SampleTokensResponse
    error: StepError
    def __init__(self, execute: _Optional[_Union[ExecuteModelResponse, _Mapping]] = ..., sample: _Optional[_Union[SampleTokensResponse, _Mapping]] = ..., error: _Optional[_Union[StepError, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("state", "epoch", "generation", "step", "phase", "seconds_in_phase", "waiting_on", "kv_id", "is_hung", "num_prefill_tokens")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_IN_PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_ON_FIELD_NUMBER: _ClassVar[int]
    KV_ID_FIELD_NUMBER: _ClassVar[int]
    IS_HUNG_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    state: str
    epoch: int
    generation: int
    step: int
    phase: DevicePhase
    seconds_in_phase: float
    waiting_on: Rank
    kv_id: str
    is_hung: bool
    num_prefill_tokens: int
    def __init__(self, state: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[DevicePhase, str]] = ..., seconds_in_phase: _Optional[float] = ..., waiting_on: _Optional[_Union[Rank, _Mapping]] = ..., kv_id: _Optional[str] = ..., is_hung: bool = ..., num_prefill_tokens: _Optional[int] = ...) -> None: ...
