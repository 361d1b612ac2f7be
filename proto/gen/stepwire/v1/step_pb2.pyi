from stepwire.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_EXECUTE: _ClassVar[Phase]
    PHASE_SAMPLE: _ClassVar[Phase]
PHASE_UNSPECIFIED: Phase
PHASE_EXECUTE: Phase
PHASE_SAMPLE: Phase

class RaggedColumn(_message.Message):
    __slots__ = ("values", "offsets")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    offsets: bytes
    def __init__(self, values: _Optional[bytes] = ..., offsets: _Optional[bytes] = ...) -> None: ...

class StepKey(_message.Message):
    __slots__ = ("epoch", "generation", "step", "phase")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    step: int
    phase: Phase
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "num_logprobs", "repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens", "end_token_ids", "biased_token_ids", "logit_biases", "allowed_token_ids", "bad_words", "num_prompt_logprobs", "extra_args")
    class ExtraArgsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    num_logprobs: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    end_token_ids: bytes
    biased_token_ids: bytes
    logit_biases: bytes
    allowed_token_ids: bytes
    bad_words: RaggedColumn
    num_prompt_logprobs: int
    extra_args: _containers.ScalarMap[str, str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., num_logprobs: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., end_token_ids: _Optional[bytes] = ..., biased_token_ids: _Optional[bytes] = ..., logit_biases: _Optional[bytes] = ..., allowed_token_ids: _Optional[bytes] = ..., bad_words: _Optional[_Union[RaggedColumn, _Mapping]] = ..., num_prompt_logprobs: _Optional[int] = ..., extra_args: _Optional[_Mapping[str, str]] = ...) -> None: ...

class NewRequest(_message.Message):
    __slots__ = ("handle", "token_ids", "num_prompt_tokens", "sampling", "block_ids", "num_computed_tokens", "traceparent", "tracestate")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    token_ids: bytes
    num_prompt_tokens: int
    sampling: SamplingParams
    block_ids: RaggedColumn
    num_computed_tokens: int
    traceparent: str
    tracestate: str
    def __init__(self, handle: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., block_ids: _Optional[_Union[RaggedColumn, _Mapping]] = ..., num_computed_tokens: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class CachedRequests(_message.Message):
    __slots__ = ("handles", "num_computed_tokens", "new_block_ids", "new_token_ids", "token_source_steps", "draft_token_ids")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SOURCE_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_computed_tokens: bytes
    new_block_ids: _containers.RepeatedCompositeFieldContainer[RaggedColumn]
    new_token_ids: RaggedColumn
    token_source_steps: bytes
    draft_token_ids: RaggedColumn
    def __init__(self, handles: _Optional[bytes] = ..., num_computed_tokens: _Optional[bytes] = ..., new_block_ids: _Optional[_Iterable[_Union[RaggedColumn, _Mapping]]] = ..., new_token_ids: _Optional[_Union[RaggedColumn, _Mapping]] = ..., token_source_steps: _Optional[bytes] = ..., draft_token_ids: _Optional[_Union[RaggedColumn, _Mapping]] = ...) -> None: ...

class SchedulerOutput(_message.Message):
    __slots__ = ("epoch", "generation", "step", "base_step", "new_requests", "cached_requests", "num_scheduled_tokens", "finished_handles", "preempted_handles", "grammar_mask_follows", "want_state_digest", "num_drafts_wanted")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BASE_STEP_FIELD_NUMBER: _ClassVar[int]
    NEW_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_MASK_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    WANT_STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_WANTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    step: int
    base_step: int
    new_requests: _containers.RepeatedCompositeFieldContainer[NewRequest]
    cached_requests: CachedRequests
    num_scheduled_tokens: bytes
    finished_handles: bytes
    preempted_handles: bytes
    grammar_mask_follows: bool
    want_state_digest: bool
    num_drafts_wanted: bytes
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., base_step: _Optional[int] = ..., new_requests: _Optional[_Iterable[_Union[NewRequest, _Mapping]]] = ..., cached_requests: _Optional[_Union[CachedRequests, _Mapping]] = ..., num_scheduled_tokens: _Optional[bytes] = ..., finished_handles: _Optional[bytes] = ..., preempted_handles: _Optional[bytes] = ..., grammar_mask_follows: bool = ..., want_state_digest: bool = ..., num_drafts_wanted: _Optional[bytes] = ...) -> None: ...

class GrammarMask(_message.Message):
    __slots__ = ("handles", "num_positions", "bits")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_positions: bytes
    bits: bytes
    def __init__(self, handles: _Optional[bytes] = ..., num_positions: _Optional[bytes] = ..., bits: _Optional[bytes] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("num_alternatives", "token_ids", "logprobs", "ranks")
    NUM_ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    num_alternatives: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, num_alternatives: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "first_position", "logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    first_position: int
    logprobs: Logprobs
    def __init__(self, handle: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("handle", "message")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    message: str
    def __init__(self, handle: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("compute_start_ns", "compute_end_ns", "wait_input_ns")
    COMPUTE_START_NS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_END_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_INPUT_NS_FIELD_NUMBER: _ClassVar[int]
    compute_start_ns: int
    compute_end_ns: int
    wait_input_ns: int
    def __init__(self, compute_start_ns: _Optional[int] = ..., compute_end_ns: _Optional[int] = ..., wait_input_ns: _Optional[int] = ...) -> None: ...

class CudagraphStats(_message.Message):
    __slots__ = ("mode", "num_tokens", "num_padded_tokens")
    MODE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    mode: str
    num_tokens: int
    num_padded_tokens: int
    def __init__(self, mode: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_padded_tokens: _Optional[int] = ...) -> None: ...

class ModelRunnerOutput(_message.Message):
    __slots__ = ("key", "handles", "sampled_token_ids", "logprobs", "request_errors", "timings", "state_digest", "kv_digest", "drafts", "prompt_logprobs", "cudagraph_stats")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CUDAGRAPH_STATS_FIELD_NUMBER: _ClassVar[int]
    key: StepKey
    handles: bytes
    sampled_token_ids: RaggedColumn
    logprobs: Logprobs
    request_errors: _containers.RepeatedCompositeFieldContainer[RequestError]
    timings: StepTimings
    state_digest: bytes
    kv_digest: bytes
    drafts: RaggedColumn
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    cudagraph_stats: CudagraphStats
    def __init__(self, key: _Optional[_Union[StepKey, _Mapping]] = ..., handles: _Optional[bytes] = ..., sampled_token_ids: _Optional[_Union[RaggedColumn, _Mapping]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., request_errors: _Optional[_Iterable[_Union[RequestError, _Mapping]]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., state_digest: _Optional[bytes] = ..., kv_digest: _Optional[bytes] = ..., drafts: _Optional[_Union[RaggedColumn, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., cudagraph_stats: _Optional[_Union[CudagraphStats, _Mapping]] = ...) -> None: ...

class IntermediateTensors(_message.Message):
    __slots__ = ("key", "descriptors", "channel", "inline", "timings", "state_digest", "kv_digest", "cudagraph_stats")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CUDAGRAPH_STATS_FIELD_NUMBER: _ClassVar[int]
    key: StepKey
    descriptors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorDescriptor]
    channel: _tensor_pb2.ChannelPayload
    inline: _tensor_pb2.InlinePayload
    timings: StepTimings
    state_digest: bytes
    kv_digest: bytes
    cudagraph_stats: CudagraphStats
    def __init__(self, key: _Optional[_Union[StepKey, _Mapping]] = ..., descriptors: _Optional[_Iterable[_Union[_tensor_pb2.TensorDescriptor, _Mapping]]] = ..., channel: _Optional[_Union[_tensor_pb2.ChannelPayload, _Mapping]] = ..., inline: _Optional[_Union[_tensor_pb2.InlinePayload, _Mapping]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., state_digest: _Optional[bytes] = ..., kv_digest: _Optional[bytes] = ..., cudagraph_stats: _Optional[_Union[CudagraphStats, _Mapping]] = ...) -> None: ...
