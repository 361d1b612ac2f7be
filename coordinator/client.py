"""Typed gRPC clients of a coordinator, asynchronous and synchronous; failures are service errors.

with Client("127.0.0.1:50050") as client:
    for delta in client.generate("The capital of France is", max_tokens=16):
        ...
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast

import grpc
from stepwire.v1 import cluster_pb2, cluster_pb2_grpc, inference_pb2_grpc
from stepwire.v1 import inference_pb2 as pb

from common.codecs.place_codec import decode_rank
from common.errors import InvalidRequest, RequestTooLarge
from common.rpc.client import client_options, connect, invoke
from common.rpc.server import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from common.rpc.status import service_errors
from coordinator.client_answers import Answers, join_each
from coordinator.engine.cluster_status import ClusterStatus, LostGeneration
from coordinator.engine.generation import (
    ChatTurn,
    TextDelta,
)
from coordinator.executors.progress import ReplicaPhase
from coordinator.executors.topology import WorkerTopology

UNARY_TIMEOUT_SECONDS = 10.0

Prompt = str | Sequence[int] | Sequence[ChatTurn]


class GenerateOptions(TypedDict, total=False):
    """Options of a request; what is left out, the coordinator chooses."""

    request_id: str
    model: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    all_logprobs: bool
    prompt_logprobs: int
    echo: bool
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    extra_args: Mapping[str, str]
    json_schema: str
    json_object: bool
    regex: str
    grammar: str
    choice: Sequence[str]
    skip_special_tokens: bool
    priority: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model; max_model_len counts prompt and output, created is Unix seconds."""

    name: str
    max_model_len: int
    created: int


class AsyncClient:
    """One channel to one coordinator, for code on an event loop; close it, or use `async with`."""

    def __init__(self, address: str, *, timeout: float | None = None) -> None:
        """Connect with the first call; timeout in seconds is the deadline of each answer."""
        self._channel = connect(address)
        self._timeout = timeout
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)
        self._cluster = cluster_pb2_grpc.ClusterStub(self._channel)

    async def generate(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[TextDelta]:
        """Stream an answer; leaving early (`contextlib.aclosing`) ends the request.

        With n > 1 the deltas of all outputs come as they are made, each with its index. num_prompt_tokens
        and num_cached_tokens are known in an output's last delta; a log-probability's text_offset is
        that of its delta, in a prompt 0.
        """
        call = self._inference.Generate(_encode_request(prompt, options), timeout=self._timeout)
        answers = Answers()
        try:
            with service_errors():
                async for response in call:
                    yield answers.decode(response)
        finally:
            call.cancel()

    async def complete(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> TextDelta:
        """The whole answer to a text, token ids, or a conversation; the first one where n > 1."""
        return (await self.complete_all(prompt, **options))[0]

    async def complete_all(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> tuple[TextDelta, ...]:
        """All n whole answers."""
        async with aclosing(self.generate(prompt, **options)) as deltas:
            return join_each([delta async for delta in deltas])

    async def chat(
        self, turns: Iterable[ChatTurn], **options: Unpack[GenerateOptions]
    ) -> TextDelta:
        """The whole answer to a conversation."""
        return await self.complete(tuple(turns), **options)

    async def abort(self, request_id: str) -> None:
        """End a running request; its stream ends with FinishReason.ABORT."""
        await invoke(
            self._inference.Abort,
            pb.AbortRequest(request_id=request_id),
            timeout=UNARY_TIMEOUT_SECONDS,
        )

    async def list_models(self) -> tuple[Model, ...]:
        """The served models."""
        response = await invoke(
            self._inference.ListModels, pb.ListModelsRequest(), timeout=UNARY_TIMEOUT_SECONDS
        )
        return _decode_models(response)

    async def status(self) -> ClusterStatus:
        """The topology and its state."""
        response = await invoke(
            self._cluster.Status, cluster_pb2.StatusRequest(), timeout=UNARY_TIMEOUT_SECONDS
        )
        return _decode_status(response)

    async def close(self) -> None:
        """End open calls and the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        """Hand out the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()


class Client:
    """The same for code without an event loop; close it, or use `with`."""

    def __init__(self, address: str, *, timeout: float | None = None) -> None:
        """Connect with the first call; timeout in seconds is the deadline of each answer."""
        self._channel = grpc.insecure_channel(address, options=client_options(MAX_MESSAGE_BYTES))
        self._timeout = timeout
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)
        self._cluster = cluster_pb2_grpc.ClusterStub(self._channel)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generator[TextDelta]:
        """Stream an answer; closing the generator early ends the request."""
        call = self._inference.Generate(_encode_request(prompt, options), timeout=self._timeout)
        answers = Answers()
        try:
            with service_errors():
                for response in call:
                    yield answers.decode(response)
        finally:
            # A call left open would keep the interpreter from ending.
            call.cancel()

    def complete(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> TextDelta:
        """The whole answer to a text, token ids, or a conversation; the first one where n > 1."""
        return self.complete_all(prompt, **options)[0]

    def complete_all(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> tuple[TextDelta, ...]:
        """All n whole answers."""
        return join_each(list(self.generate(prompt, **options)))

    def chat(self, turns: Iterable[ChatTurn], **options: Unpack[GenerateOptions]) -> TextDelta:
        """The whole answer to a conversation."""
        return self.complete(tuple(turns), **options)

    def abort(self, request_id: str) -> None:
        """End a running request; its stream ends with FinishReason.ABORT."""
        with service_errors():
            self._inference.Abort(
                pb.AbortRequest(request_id=request_id), timeout=UNARY_TIMEOUT_SECONDS
            )

    def list_models(self) -> tuple[Model, ...]:
        """The served models."""
        with service_errors():
            response = self._inference.ListModels(
                pb.ListModelsRequest(), timeout=UNARY_TIMEOUT_SECONDS
            )
        return _decode_models(response)

    def status(self) -> ClusterStatus:
        """The topology and its state."""
        with service_errors():
            response = self._cluster.Status(
                cluster_pb2.StatusRequest(), timeout=UNARY_TIMEOUT_SECONDS
            )
        return _decode_status(response)

    def close(self) -> None:
        """End open calls and the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        """Hand out the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()


def _encode_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    fields = dict(options)
    if "choice" in fields:
        fields["choice"] = pb.Choices(texts=fields["choice"])
    try:
        request = pb.GenerateRequest(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"an option does not fit its field: {error}") from error
    if isinstance(prompt, str):
        request.text = prompt
    elif any(isinstance(part, ChatTurn) for part in prompt):
        turns = cast("Sequence[ChatTurn]", prompt)
        messages = [pb.ChatMessage(role=turn.role, content=turn.content) for turn in turns]
        request.conversation.CopyFrom(pb.Conversation(messages=messages))
    else:
        request.token_ids.CopyFrom(pb.TokenIds(ids=cast("Sequence[int]", prompt)))
    if (num_bytes := request.ByteSize()) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the request has {num_bytes} bytes, at most {MAX_REQUEST_BYTES} are read"
        )
    return request


def _decode_models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(
        Model(name=model.name, max_model_len=model.max_model_len, created=model.created)
        for model in response.models
    )


def _decode_status(response: cluster_pb2.StatusResponse) -> ClusterStatus:
    return ClusterStatus(
        model=response.model,
        is_serving=response.serving,
        epoch=response.epoch,
        generation=response.generation,
        step=response.step,
        workers=tuple(_decode_worker(worker) for worker in response.workers),
        num_waiting=response.num_waiting,
        num_running=response.num_running,
        num_blocks=response.num_blocks,
        num_free_blocks=response.num_free_blocks,
        phase=ReplicaPhase(response.phase),
        detail=response.detail,
        last_step_age=(
            response.last_step_age_seconds if response.HasField("last_step_age_seconds") else None
        ),
        lost_generations=tuple(
            LostGeneration(generation=lost.generation, cause=lost.cause, ended_at=lost.ended_at)
            for lost in response.lost_generations
        ),
        num_invalid_steps=response.num_invalid_steps,
        num_state_checks=response.num_state_checks,
        num_state_drifts=response.num_state_drifts,
        num_prompt_tokens=response.num_prompt_tokens,
        num_cached_tokens=response.num_cached_tokens,
        num_generated_tokens=response.num_generated_tokens,
        num_preemptions=response.num_preemptions,
    )


def _decode_worker(worker: cluster_pb2.WorkerStatus) -> WorkerTopology:
    return WorkerTopology(
        rank=decode_rank(worker.rank),
        address=worker.address,
        device=worker.device,
        incarnation=worker.incarnation,
        first_layer=worker.first_layer,
        end_layer=worker.end_layer,
        parameter_bytes=worker.parameter_bytes,
        cause=worker.cause,
        num_loads=worker.num_loads,
        phase=worker.phase,
        seconds_in_phase=worker.seconds_in_phase,
        num_prefill_tokens=worker.num_prefill_tokens,
    )
