from stepwire.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("rank", "address", "incarnation", "device", "first_layer", "end_layer", "parameter_bytes", "state", "cause", "phase", "seconds_in_phase", "num_loads", "num_prefill_tokens")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    END_LAYER_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_IN_PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    rank: _worker_pb2.Rank
    address: str
    incarnation: str
    device: str
    first_layer: int
    end_layer: int
    parameter_bytes: int
    state: str
    cause: str
    phase: str
    seconds_in_phase: float
    num_loads: int
    num_prefill_tokens: int
    def __init__(self, rank: _Optional[_Union[_worker_pb2.Rank, _Mapping]] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ..., device: _Optional[str] = ..., first_layer: _Optional[int] = ..., end_layer: _Optional[int] = ..., parameter_bytes: _Optional[int] = ..., state: _Optional[str] = ..., cause: _Optional[str] = ..., phase: _Optional[str] = ..., seconds_in_phase: _Optional[float] = ..., num_loads: _Optional[int] = ..., num_prefill_tokens: _Optional[int] = ...) -> None: ...

class LostGeneration(_message.Message):
    __slots__ = ("generation", "cause", "ended_at")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    cause: str
    ended_at: float
    def __init__(self, generation: _Optional[int] = ..., cause: _Optional[str] = ..., ended_at: _Optional[float] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("model", "serving", "epoch", "generation", "step", "workers", "num_waiting", "num_running", "num_blocks", "num_free_blocks", "phase", "detail", "last_step_age_seconds", "lost_generations", "num_invalid_steps", "num_state_checks", "num_state_drifts", "num_prompt_tokens", "num_cached_tokens", "num_generated_tokens", "num_preemptions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_INVALID_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_CHECKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_DRIFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    serving: bool
    epoch: int
    generation: int
    step: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    phase: str
    detail: str
    last_step_age_seconds: float
    lost_generations: _containers.RepeatedCompositeFieldContainer[LostGeneration]
    num_invalid_steps: int
    num_state_checks: int
    num_state_drifts: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    def __init__(self, model: _Optional[str] = ..., serving: bool = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., phase: _Optional[str] = ..., detail: _Optional[str] = ..., last_step_age_seconds: _Optional[float] = ..., lost_generations: _Optional[_Iterable[_Union[LostGeneration, _Mapping]]] = ..., num_invalid_steps: _Optional[int] = ..., num_state_checks: _Optional[int] = ..., num_state_drifts: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_preemptions: _Optional[int] = ...) -> None: ...
