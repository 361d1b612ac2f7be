"""Protobuf spelling of `common.step`: what a step answers.

Malformed columns raise InvalidStep naming the field, malformed tensors TensorError.
"""

from stepwire.v1 import step_pb2 as pb
from stepwire.v1 import tensor_pb2, worker_pb2

from common.codecs.columns import (
    FLOAT32,
    INT32,
    UINT64,
    decode_column,
    decode_ragged,
    encode_column,
    encode_optional_ragged,
    encode_ragged,
)
from common.codecs.step_codec import decode_step_key, encode_step_key
from common.codecs.tensor_codec import decode_descriptors, encode_descriptor, pair_with_buffers
from common.errors import (
    Fenced,
    InvalidStep,
    NeedResync,
    ServiceError,
    StaleStep,
    StepFailed,
    TensorError,
    WrongOrder,
)
from common.step import (
    CudagraphStats,
    IntermediateTensors,
    Logprobs,
    ModelRunnerOutput,
    PromptLogprobs,
    StepKey,
    StepTimings,
)

_CODE_BY_ERROR: dict[type[ServiceError], worker_pb2.StepErrorCode] = {
    InvalidStep: worker_pb2.STEP_ERROR_CODE_INVALID,
    WrongOrder: worker_pb2.STEP_ERROR_CODE_WRONG_ORDER,
    NeedResync: worker_pb2.STEP_ERROR_CODE_NEED_RESYNC,
    StaleStep: worker_pb2.STEP_ERROR_CODE_STALE,
    Fenced: worker_pb2.STEP_ERROR_CODE_FENCED,
    StepFailed: worker_pb2.STEP_ERROR_CODE_INTERNAL,
}
_ERROR_BY_CODE = {code: error for error, code in _CODE_BY_ERROR.items()}


def encode_model_runner_output(output: ModelRunnerOutput) -> pb.ModelRunnerOutput:
    """Spell what a step produced."""
    return pb.ModelRunnerOutput(
        key=encode_step_key(output.key),
        handles=encode_column(output.handles, UINT64),
        sampled_token_ids=encode_ragged(output.sampled_token_ids),
        logprobs=None if output.logprobs is None else _encode_logprobs(output.logprobs),
        request_errors=[
            pb.RequestError(handle=handle, message=message)
            for handle, message in output.request_errors
        ],
        timings=_encode_timings(output.timings),
        cudagraph_stats=_encode_graph_stats(output.cudagraph_stats),
        state_digest=output.state_digest,
        kv_digest=output.kv_digest,
        drafts=encode_optional_ragged(output.drafts),
        prompt_logprobs=[
            pb.PromptLogprobs(
                handle=part.handle,
                first_position=part.first_position,
                logprobs=_encode_logprobs(part.logprobs),
            )
            for part in output.prompt_logprobs
        ],
    )


def decode_model_runner_output(output: pb.ModelRunnerOutput) -> ModelRunnerOutput:
    """Read what a step produced and check that its columns agree."""
    handles = decode_column(output.handles, UINT64, field="handles")
    sampled = decode_ragged(
        output.sampled_token_ids, field="sampled_token_ids", num_rows=len(handles)
    )
    return ModelRunnerOutput(
        key=decode_step_key(output.key),
        handles=handles,
        sampled_token_ids=sampled,
        logprobs=(
            _decode_logprobs(output.logprobs, "logprobs", num_positions=len(sampled.values))
            if output.HasField("logprobs")
            else None
        ),
        prompt_logprobs=tuple(map(_decode_prompt_logprobs, output.prompt_logprobs)),
        request_errors=tuple((error.handle, error.message) for error in output.request_errors),
        timings=_decode_timings(output.timings),
        cudagraph_stats=(
            _decode_graph_stats(output.cudagraph_stats)
            if output.HasField("cudagraph_stats")
            else None
        ),
        state_digest=output.state_digest if output.HasField("state_digest") else None,
        kv_digest=output.kv_digest if output.HasField("kv_digest") else None,
        drafts=(
            decode_ragged(output.drafts, field="drafts", num_rows=len(handles))
            if output.HasField("drafts")
            else None
        ),
    )


def _encode_logprobs(logprobs: Logprobs) -> pb.Logprobs:
    return pb.Logprobs(
        num_alternatives=logprobs.token_ids.shape[1] - 1,
        token_ids=encode_column(logprobs.token_ids, INT32),
        logprobs=encode_column(logprobs.logprobs, FLOAT32),
        ranks=encode_column(logprobs.ranks, INT32),
    )


def _decode_prompt_logprobs(part: pb.PromptLogprobs) -> PromptLogprobs:
    num_positions = len(part.logprobs.ranks) // INT32.itemsize
    return PromptLogprobs(
        handle=part.handle,
        first_position=part.first_position,
        logprobs=_decode_logprobs(
            part.logprobs, "prompt_logprobs.logprobs", num_positions=num_positions
        ),
    )


def _decode_logprobs(logprobs: pb.Logprobs, field: str, *, num_positions: int) -> Logprobs:
    shape = num_positions, logprobs.num_alternatives + 1
    length = shape[0] * shape[1]
    return Logprobs(
        token_ids=decode_column(
            logprobs.token_ids, INT32, field=f"{field}.token_ids", length=length
        ).reshape(shape),
        logprobs=decode_column(
            logprobs.logprobs, FLOAT32, field=f"{field}.logprobs", length=length
        ).reshape(shape),
        ranks=decode_column(logprobs.ranks, INT32, field=f"{field}.ranks", length=num_positions),
    )


def _encode_graph_stats(stats: CudagraphStats | None) -> pb.CudagraphStats | None:
    if stats is None:
        return None
    return pb.CudagraphStats(
        mode=stats.mode,
        num_tokens=stats.num_tokens,
        num_padded_tokens=stats.num_padded_tokens,
    )


def _decode_graph_stats(stats: pb.CudagraphStats) -> CudagraphStats:
    return CudagraphStats(
        mode=stats.mode,
        num_tokens=stats.num_tokens,
        num_padded_tokens=stats.num_padded_tokens,
    )


def _encode_timings(timings: StepTimings) -> pb.StepTimings:
    return pb.StepTimings(
        compute_start_ns=timings.compute_start_ns,
        compute_end_ns=timings.compute_end_ns,
        wait_input_ns=timings.wait_input_ns,
    )


def _decode_timings(timings: pb.StepTimings) -> StepTimings:
    return StepTimings(
        compute_start_ns=timings.compute_start_ns,
        compute_end_ns=timings.compute_end_ns,
        wait_input_ns=timings.wait_input_ns,
    )


def encode_intermediate_tensors(tensors: IntermediateTensors) -> pb.IntermediateTensors:
    """Spell what a stage hands on; inline tensors are copied into the message."""
    spelled = pb.IntermediateTensors(
        key=encode_step_key(tensors.key),
        descriptors=[encode_descriptor(descriptor) for descriptor in tensors.descriptors],
        timings=_encode_timings(tensors.timings),
        cudagraph_stats=_encode_graph_stats(tensors.cudagraph_stats),
        state_digest=tensors.state_digest,
        kv_digest=tensors.kv_digest,
    )
    if tensors.inline is None:
        spelled.channel.SetInParent()
    else:
        spelled.inline.CopyFrom(
            tensor_pb2.InlinePayload(tensors=[bytes(tensor.buffer) for tensor in tensors.inline])
        )
    return spelled


def decode_intermediate_tensors(tensors: pb.IntermediateTensors) -> IntermediateTensors:
    """Read what a stage hands on; inline tensors are verified views of the message's bytes."""
    descriptors = decode_descriptors(tensors.descriptors)
    payload = tensors.WhichOneof("payload")
    if payload is None:
        raise TensorError("payload: neither channel nor inline")
    inline = None
    if payload == "inline":
        inline = pair_with_buffers(
            descriptors, [memoryview(buffer) for buffer in tensors.inline.tensors]
        )
        for tensor in inline:
            tensor.verify()
    return IntermediateTensors(
        key=decode_step_key(tensors.key),
        descriptors=descriptors,
        inline=inline,
        timings=_decode_timings(tensors.timings),
        cudagraph_stats=(
            _decode_graph_stats(tensors.cudagraph_stats)
            if tensors.HasField("cudagraph_stats")
            else None
        ),
        state_digest=tensors.state_digest if tensors.HasField("state_digest") else None,
        kv_digest=tensors.kv_digest if tensors.HasField("kv_digest") else None,
    )


def encode_step_error(error: ServiceError, key: StepKey) -> worker_pb2.StepError:
    """Spell why a step was not executed; what is no refusal is INTERNAL."""
    return worker_pb2.StepError(
        key=encode_step_key(key),
        code=_CODE_BY_ERROR.get(type(error), worker_pb2.STEP_ERROR_CODE_INTERNAL),
        message=str(error),
    )


def decode_step_error(error: worker_pb2.StepError) -> ServiceError:
    """Read why a step was not executed, as the error to raise; an unknown code is StepFailed."""
    return _ERROR_BY_CODE.get(error.code, StepFailed)(error.message)
