"""Protobuf spelling of the execute and sample calls, unary and as items of the step stream."""

import numpy as np
from stepwire.v1 import step_pb2
from stepwire.v1 import worker_pb2 as pb

from common.codecs.columns import INT32, UINT64, decode_column, encode_column
from common.codecs.result_codec import (
    decode_intermediate_tensors,
    decode_model_runner_output,
    decode_step_error,
    encode_intermediate_tensors,
    encode_model_runner_output,
    encode_step_error,
)
from common.codecs.step_codec import (
    decode_scheduler_output,
    decode_step_key,
    encode_scheduler_output,
    encode_step_key,
)
from common.errors import InvalidStep, ServiceError
from common.step import (
    ExecutePending,
    ExecuteResult,
    GrammarMask,
    IntermediateTensors,
    ModelRunnerOutput,
    Phase,
    StepId,
    StepKey,
)
from common.worker_api import ExecuteModel


def encode_execute_model(request: ExecuteModel) -> pb.ExecuteModelRequest:
    """Spell an execute phase."""
    tensors = request.intermediate_tensors
    return pb.ExecuteModelRequest(
        scheduler_output=encode_scheduler_output(request.scheduler_output),
        intermediate_tensors=None if tensors is None else encode_intermediate_tensors(tensors),
        inline_reply=request.inline_reply,
        # Rounded up: 0 would mean no deadline.
        deadline_ms=0 if request.deadline is None else max(1, round(request.deadline * 1000)),
    )


def decode_execute_model(request: pb.ExecuteModelRequest) -> ExecuteModel:
    """Read an execute phase."""
    return ExecuteModel(
        scheduler_output=decode_scheduler_output(request.scheduler_output),
        intermediate_tensors=(
            decode_intermediate_tensors(request.intermediate_tensors)
            if request.HasField("intermediate_tensors")
            else None
        ),
        inline_reply=request.inline_reply,
        deadline=request.deadline_ms / 1000 if request.deadline_ms else None,
    )


def encode_execute_result(result: ExecuteResult) -> pb.ExecuteModelResponse:
    """Spell the answer to an execute phase; ExecutePending has neither result."""
    response = pb.ExecuteModelResponse(key=encode_step_key(result.key))
    match result:
        case IntermediateTensors():
            response.intermediate_tensors.CopyFrom(encode_intermediate_tensors(result))
        case ModelRunnerOutput():
            response.model_runner_output.CopyFrom(encode_model_runner_output(result))
        case ExecutePending():
            pass
    return response


def decode_execute_result(response: pb.ExecuteModelResponse) -> ExecuteResult:
    """Read the answer to an execute phase."""
    match response.WhichOneof("result"):
        case "intermediate_tensors":
            return decode_intermediate_tensors(response.intermediate_tensors)
        case "model_runner_output":
            return decode_model_runner_output(response.model_runner_output)
        case _:
            return ExecutePending(key=decode_step_key(response.key))


def encode_sample_tokens(
    step_id: StepId, mask: GrammarMask | None = None
) -> pb.SampleTokensRequest:
    """Spell a sample phase."""
    return pb.SampleTokensRequest(
        key=encode_step_key(StepKey(step_id=step_id, phase=Phase.SAMPLE)),
        grammar_mask=None if mask is None else _encode_grammar_mask(mask),
    )


def decode_sample_tokens(request: pb.SampleTokensRequest) -> tuple[StepId, GrammarMask | None]:
    """Read a sample phase, whose key must say so, and its mask if it has one."""
    key = decode_step_key(request.key)
    if key.phase is not Phase.SAMPLE:
        raise InvalidStep(f"key.phase: {key} does not ask for a sample phase")
    mask = request.grammar_mask if request.HasField("grammar_mask") else None
    return key.step_id, None if mask is None else _decode_grammar_mask(mask)


def _encode_grammar_mask(mask: GrammarMask) -> step_pb2.GrammarMask:
    return step_pb2.GrammarMask(
        handles=encode_column(mask.handles, UINT64),
        num_positions=encode_column(mask.num_positions, INT32),
        bits=encode_column(mask.bits, INT32),
    )


def _decode_grammar_mask(mask: step_pb2.GrammarMask) -> GrammarMask:
    field = "grammar_mask"
    handles = decode_column(mask.handles, UINT64, field=f"{field}.handles")
    num_positions = decode_column(
        mask.num_positions, INT32, field=f"{field}.num_positions", length=len(handles)
    )
    if (num_positions < 1).any():
        raise InvalidStep(f"{field}.num_positions: an entry is below 1")
    bits = decode_column(mask.bits, INT32, field=f"{field}.bits")
    total = int(num_positions.sum(dtype=np.int64))
    if total > len(bits) or (len(bits) % total if total else len(bits)):
        raise InvalidStep(f"{field}.bits: {len(bits)} words for {total} positions")
    return GrammarMask(
        handles=handles,
        num_positions=num_positions,
        bits=bits.reshape(total, len(bits) // max(total, 1)),
    )


def encode_sample_result(output: ModelRunnerOutput) -> pb.SampleTokensResponse:
    """Spell the answer to a sample phase."""
    return pb.SampleTokensResponse(model_runner_output=encode_model_runner_output(output))


def decode_sample_result(response: pb.SampleTokensResponse) -> ModelRunnerOutput:
    """Read the answer to a sample phase."""
    return decode_model_runner_output(response.model_runner_output)


def encode_stream_answer(answer: ExecuteResult | ServiceError, key: StepKey) -> pb.RunStepsResponse:
    """Spell one answer of the step stream: to `key`, which says whether it is a sample phase's."""
    if isinstance(answer, ServiceError):
        return pb.RunStepsResponse(error=encode_step_error(answer, key))
    if key.phase is Phase.SAMPLE:
        assert isinstance(answer, ModelRunnerOutput)
        return pb.RunStepsResponse(sample=encode_sample_result(answer))
    return pb.RunStepsResponse(execute=encode_execute_result(answer))


def decode_stream_answer(
    response: pb.RunStepsResponse,
) -> tuple[StepKey, ExecuteResult | ServiceError]:
    """Read one answer of the step stream: the key it answers, and the result or error."""
    match response.WhichOneof("item"):
        case "execute":
            result = decode_execute_result(response.execute)
            return decode_step_key(response.execute.key), result
        case "sample":
            output = decode_sample_result(response.sample)
            return output.key, output
        case "error":
            return decode_step_key(response.error.key), decode_step_error(response.error)
        case _:
            raise InvalidStep("item: the answer is empty")
