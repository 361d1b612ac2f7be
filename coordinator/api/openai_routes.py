"""The HTTP routes OpenAI clients use, and /health and /version for operators."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from common.clock import Clock
from common.errors import ModelNotFound, RequestTooLarge, ServiceError
from common.rpc.server import MAX_REQUEST_BYTES
from common.trace_context import read_trace_context
from coordinator.api.body_limit import BodyLimit, UnreadBodyResponse
from coordinator.api.event_stream import (
    DONE,
    EventStreamResponse,
    TextEvents,
    event,
    unless_client_leaves,
)
from coordinator.api.json_body import read_body
from coordinator.api.openai_answers import AnswerFormat, AnswerHead, ChatFormat, CompletionFormat
from coordinator.api.openai_schema import ChatBody, CompletionBody, GenerationBody
from coordinator.api.problems import problem, service_error_body, service_error_response
from coordinator.api.request_ids import RequestIds, request_id_of
from coordinator.api.token_usage import TokenUsage
from coordinator.api.unsupported_fields import UnknownFields
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import GenerationInput, ServedModel, TextDelta
from coordinator.engine.output_group import Outputs

COMPLETIONS, CHAT_COMPLETIONS = "/v1/completions", "/v1/chat/completions"
ID_PREFIXES = {COMPLETIONS: "cmpl-", CHAT_COMPLETIONS: "chatcmpl-"}


class OpenAIRoutes:
    """Serves whatever engine stands behind the gate; a client that leaves frees its request."""

    def __init__(
        self,
        gate: EngineGate,
        *,
        is_healthy: Callable[[], bool],
        version: str,
        clock: Clock,
    ) -> None:
        """Answer 503 until the gate opens; is_healthy is what /health tells."""
        self._gate = gate
        self._is_healthy = is_healthy
        self._version = version
        self._clock = clock
        self.unknown_fields = UnknownFields()

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter()
        router.add_api_route("/v1/models", self.list_models, methods=["GET"])
        router.add_api_route("/v1/models/{name:path}", self.get_model, methods=["GET"])
        for path, endpoint in ((COMPLETIONS, self.complete), (CHAT_COMPLETIONS, self.chat)):
            router.add_api_route(path, endpoint, methods=["POST"], response_model=None)
        router.add_api_route("/health", self.health, methods=["GET"], response_model=None)
        # Load balancers ask so.
        router.add_api_route("/health", self.health, methods=["HEAD"], include_in_schema=False)
        router.add_api_route("/version", self.version, methods=["GET"])
        return router

    async def list_models(self) -> dict[str, Any]:
        """The served models."""
        models = self._gate.engine.models()
        return {"object": "list", "data": [_model_body(model) for model in models]}

    async def get_model(self, name: str) -> dict[str, Any]:
        """One served model by name."""
        for model in self._gate.engine.models():
            if model.name == name:
                return _model_body(model)
        raise ModelNotFound(f"there is no model {name!r}")

    async def complete(self, request: Request) -> Response:
        """Continue texts or token ids."""
        body = await read_body(request, CompletionBody)
        self.unknown_fields.check(body.fields_without_model())
        asked = _traced(body.to_input(request_id_of(request)), request)
        return await self._answer(request, body, asked, CompletionFormat(self._head(asked)))

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody)
        self.unknown_fields.check(body.fields_without_model())
        asked = _traced(body.to_input(request_id_of(request)), request)
        return await self._answer(request, body, asked, ChatFormat(self._head(asked)))

    async def health(self) -> Response:
        """200 while requests are served, else 503."""
        if self._is_healthy():
            return JSONResponse({"status": "serving"})
        return problem("the service takes no requests now", status=503, code="unavailable")

    async def version(self) -> dict[str, str]:
        """The release."""
        return {"version": self._version}

    def _head(self, asked: GenerationInput) -> AnswerHead:
        name = asked.model or self._gate.engine.models()[0].name
        return AnswerHead(
            id=asked.request_id,
            model=name,
            created=int(self._clock.unix_time()),
            num_outputs=asked.num_sequences,
        )

    async def _answer(
        self,
        request: Request,
        body: GenerationBody,
        asked: GenerationInput,
        spelling: AnswerFormat,
    ) -> Response:
        usage = TokenUsage(asked.num_choices)
        if not body.is_streamed:
            deltas = await unless_client_leaves(request.receive, self._collect(asked))
            for delta in deltas:
                usage.add(delta)
            return JSONResponse(spelling.whole(deltas, usage))
        async with AsyncExitStack() as held:
            # Waiting for the first delta here lets an error before it be an HTTP status.
            work = self._begin(asked, held)
            first, outputs = await unless_client_leaves(request.receive, work)
            frames = _frames(
                first, outputs, spelling, usage=usage, includes_usage=body.includes_usage
            )
            return EventStreamResponse(frames, on_close=held.pop_all().aclose)

    async def _collect(self, asked: GenerationInput) -> Sequence[TextDelta]:
        async with await self._gate.engine.generate(asked) as outputs:
            return [delta async for delta in outputs]

    async def _begin(
        self, asked: GenerationInput, held: AsyncExitStack
    ) -> tuple[TextDelta, Outputs]:
        outputs = await self._gate.engine.generate(asked)
        held.push_async_callback(outputs.aclose)
        return await anext(outputs), outputs


async def _frames(
    first: TextDelta,
    outputs: Outputs,
    spelling: AnswerFormat,
    *,
    usage: TokenUsage,
    includes_usage: bool,
) -> AsyncGenerator[bytes]:
    """The frames of one streamed answer; an error becomes the last one."""
    try:
        for body in spelling.opening():
            yield event(body)
        chunks = _Chunks(spelling)
        usage.add(first)
        if _is_worth_a_chunk(first):
            yield chunks.event(first)
        async for delta in outputs:
            usage.add(delta)
            if _is_worth_a_chunk(delta):
                yield chunks.event(delta)
    except ServiceError as error:
        yield event(service_error_body(error))
        return
    if includes_usage:
        yield event(spelling.usage_chunk(usage))
    yield event(DONE)


class _Chunks:
    """The events of one answer's deltas; most bring a text and nothing else."""

    def __init__(self, spelling: AnswerFormat) -> None:
        self._spelling = spelling
        self._texts_by_index: dict[int, TextEvents] = {}

    def event(self, delta: TextDelta) -> bytes:
        is_text_alone = delta.logprobs is None and delta.prompt is None
        if delta.text and is_text_alone and delta.finish_reason is None:
            return self._texts(delta.index).event(delta.text)
        return event(self._spelling.chunk(delta))

    def _texts(self, index: int) -> TextEvents:
        texts = self._texts_by_index.get(index)
        if texts is None:
            texts = TextEvents(lambda text: self._spelling.chunk(_text_alone(text, index)))
            self._texts_by_index[index] = texts
        return texts


def _text_alone(text: str, index: int) -> TextDelta:
    return TextDelta(
        text=text, token_ids=(), num_prompt_tokens=0, num_generated_tokens=0, index=index
    )


def _is_worth_a_chunk(delta: TextDelta) -> bool:
    """Whether a delta says anything an OpenAI client can see; tokens without text do not."""
    return bool(delta.text or delta.logprobs or delta.prompt or delta.finish_reason)


def _traced(asked: GenerationInput, request: Request) -> GenerationInput:
    """With the client's span, if its headers name one."""
    return replace(asked, trace=read_trace_context(request.headers))


def _model_body(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "stepwire",
        "max_model_len": model.max_model_len,
    }


def build_http_app(routes: OpenAIRoutes) -> FastAPI:
    """The ASGI application: routes, and every failure in the shape OpenAI clients read."""
    app = FastAPI(title="Stepwire", docs_url=None, redoc_url=None, strict_content_type=False)
    app.include_router(routes.router())
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(BodyLimit, max_bytes=MAX_REQUEST_BYTES)
    app.add_middleware(RequestIds, prefixes=ID_PREFIXES)
    return app


async def _on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    response = service_error_response(error)
    return UnreadBodyResponse(response) if isinstance(error, RequestTooLarge) else response


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = problem(message, status=error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    return problem(f"internal error: {type(error).__name__}", status=500, code="internal")
