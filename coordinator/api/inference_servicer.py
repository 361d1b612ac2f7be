"""The gRPC service Inference: decode, call the engine, encode."""

import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc
from stepwire.v1 import inference_pb2 as pb
from stepwire.v1 import inference_pb2_grpc

from common.errors import InvalidRequest
from common.requests import FinishReason
from common.rpc.interceptors import trace_of
from coordinator.api.constraint_fields import constraint_of_arm
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import (
    ChatTurn,
    GenerationInput,
    PositionLogprobs,
    Prompt,
    TextDelta,
    TokenLogprob,
)
from coordinator.engine.limits import ALL_LOGPROBS
from coordinator.structured.constraint import Constraint

Context = grpc.aio.ServicerContext[Any, Any]

FINISH_REASONS = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Serves whatever engine stands behind the gate; a cancelled call frees its request."""

    def __init__(self, gate: EngineGate) -> None:
        """Answer Unavailable until the gate opens."""
        self._gate = gate

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Stream the outputs of one request."""
        asked = replace(decode_generate(request), trace=trace_of(context))
        async with await self._gate.engine.generate(asked) as outputs:
            async for delta in outputs:
                yield encode_delta(asked.request_id, delta)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End a running request; its stream ends with FINISH_REASON_ABORT."""
        self._gate.engine.abort(request.request_id)
        return pb.AbortResponse()

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Name the served models."""
        return pb.ListModelsResponse(
            models=[
                pb.Model(name=model.name, max_model_len=model.max_model_len, created=model.created)
                for model in self._gate.engine.models()
            ]
        )


def decode_generate(request: pb.GenerateRequest) -> GenerationInput:
    """The engine's input, unchecked; a request without an id gets one."""
    return GenerationInput(
        request_id=request.request_id or f"gen-{uuid.uuid4().hex}",
        model=request.model,
        prompts=(_prompt(request),),
        n=_optional(request, "n"),
        max_tokens=_optional(request, "max_tokens"),
        temperature=_optional(request, "temperature"),
        top_k=_optional(request, "top_k"),
        top_p=_optional(request, "top_p"),
        min_p=_optional(request, "min_p"),
        seed=_optional(request, "seed"),
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=ALL_LOGPROBS if request.all_logprobs else _optional(request, "logprobs"),
        prompt_logprobs=_optional(request, "prompt_logprobs"),
        echo=request.echo,
        repetition_penalty=_optional(request, "repetition_penalty"),
        frequency_penalty=_optional(request, "frequency_penalty"),
        presence_penalty=_optional(request, "presence_penalty"),
        min_tokens=_optional(request, "min_tokens"),
        logit_bias=tuple(request.logit_bias.items()),
        allowed_token_ids=tuple(request.allowed_token_ids) or None,
        bad_words=tuple(request.bad_words),
        extra_args=tuple(sorted(request.extra_args.items())),
        constraint=_constraint(request),
        skip_special_tokens=_optional(request, "skip_special_tokens") is not False,
        priority=_optional(request, "priority"),
    )


def encode_delta(request_id: str, delta: TextDelta) -> pb.GenerateResponse:
    """One response; usage stands on the last one of each output only."""
    response = pb.GenerateResponse(
        request_id=request_id,
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[_encode_position(position) for position in delta.logprobs or ()],
        finish_reason=FINISH_REASONS[delta.finish_reason],
    )
    if delta.prompt is not None:
        response.prompt_text = delta.prompt.text
        response.first_prompt_token.CopyFrom(_encode_token(delta.prompt.first_token))
        response.prompt_logprobs.extend(map(_encode_position, delta.prompt.logprobs or ()))
    if delta.finish_reason is not None:
        response.usage.prompt_tokens = delta.num_prompt_tokens
        response.usage.completion_tokens = delta.num_generated_tokens
        response.usage.cached_tokens = delta.num_cached_tokens
    return response


def _prompt(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "token_ids":
            return tuple(request.token_ids.ids)
        case "conversation":
            messages = request.conversation.messages
            if not messages:
                raise InvalidRequest("messages is empty, at least one is needed", param="messages")
            return tuple(ChatTurn(role=turn.role, content=turn.content) for turn in messages)
        case _:
            return request.text


def _constraint(request: pb.GenerateRequest) -> Constraint | None:
    arm = request.WhichOneof("constraint")
    value = request.choice.texts if arm == "choice" else getattr(request, arm or "regex")
    return constraint_of_arm(arm, value)


def _optional(request: pb.GenerateRequest, field: str) -> Any:
    return getattr(request, field) if request.HasField(field) else None


def _encode_position(position: PositionLogprobs) -> pb.PositionLogprobs:
    return pb.PositionLogprobs(
        chosen=_encode_token(position.chosen),
        rank=position.rank,
        top=[_encode_token(token) for token in position.top],
    )


def _encode_token(token: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(token_id=token.token_id, token=token.text, logprob=token.logprob)
