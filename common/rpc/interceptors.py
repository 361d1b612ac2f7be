"""Server side of every RPC: errors become statuses, log lines carry the request id, calls are timed."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

from common.call_times import CallTimes
from common.clock import Clock, SystemClock
from common.errors import InvalidRequest, ServiceError
from common.logs import bind_log_context, get_logger
from common.rpc.status import to_metadata, to_status
from common.trace_context import TraceContext, log_fields, read_trace_context

REQUEST_ID_KEY = "x-request-id"

logger = get_logger(__name__)

# Handlers are typed by their service; here every one is the same. Quoted: only grpc's type stubs
# know these classes as generic.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Behavior = Callable[[Any, Context], Any]

# (request is a stream, response is a stream) -> attribute that holds the behavior, and its factory.
_SHAPES: dict[tuple[bool, bool], tuple[str, Callable[..., MethodHandler]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undecodable:
    """Stands for a request whose bytes are no message, for instance a text that is not UTF-8."""

    complaint: str


def trace_of(context: Context) -> TraceContext | None:
    """The client's span, if the metadata of a call names one."""
    return read_trace_context(dict(context.invocation_metadata() or ()))


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls whose handler raised with that error's status, and logs each with its duration.

    A ServiceError keeps its class on the wire; any other exception is a bug, logged in full and
    told to the client as INTERNAL. Handlers are coroutines or async generators.
    """

    def __init__(self, clock: Clock | None = None, calls: CallTimes | None = None) -> None:
        """Note the duration of every call in calls."""
        self._clock = clock or SystemClock()
        self._calls = calls or CallTimes()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        """Wrap the handler of one call; an unknown method has none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        shape = bool(handler.request_streaming), bool(handler.response_streaming)
        attribute, factory = _SHAPES[shape]
        behavior = cast("Behavior", getattr(handler, attribute))
        return factory(
            self._wrap(behavior, handler_call_details),
            request_deserializer=_decoder(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _wrap(self, behavior: Behavior, details: grpc.HandlerCallDetails) -> Behavior:
        async def call(request: Any, context: Context) -> Any:
            async with self._guard(details, context):
                _check_decoded(request)
                return await behavior(request, context)

        async def stream(request: Any, context: Context) -> None:
            # Written from a coroutine, so that a client's leaving closes the generator at once
            # and not when it is collected.
            async with self._guard(details, context):
                _check_decoded(request)
                responses = cast("AsyncGenerator[Any]", behavior(request, context))
                async with aclosing(responses):
                    async for response in responses:
                        await context.write(response)

        return stream if inspect.isasyncgenfunction(behavior) else call

    @asynccontextmanager
    async def _guard(
        self, details: grpc.HandlerCallDetails, context: Context
    ) -> AsyncGenerator[None]:
        metadata = dict(details.invocation_metadata or ())
        request_id = metadata.get(REQUEST_ID_KEY)
        fields = {} if request_id is None else {"request_id": str(request_id)}
        fields |= log_fields(read_trace_context(metadata))
        if fields:
            # Every call runs in a task of its own, so the binding ends with it.
            bind_log_context(**fields)
        started = self._clock.monotonic()
        outcome = "CANCELLED"
        try:
            yield
            outcome = "OK"
        except ServiceError as error:
            outcome = error.grpc_status.name
            await context.abort(*to_status(error), to_metadata(error))
        except grpc.aio.AbortError:
            outcome = "ABORTED"
            raise
        except Exception as error:
            outcome = "INTERNAL"
            logger.exception("rpc handler failed", extra={"method": details.method})
            bug = ServiceError(f"internal error: {type(error).__name__}: {error}")
            await context.abort(*to_status(bug), to_metadata(bug))
        finally:
            seconds = self._clock.monotonic() - started
            self._calls.note(details.method.lstrip("/"), outcome=outcome, seconds=seconds)
            logger.debug(
                "rpc ended",
                extra={
                    "method": details.method,
                    "outcome": outcome,
                    "seconds": round(seconds, 6),
                },
            )


def _decoder(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The same, but what cannot be decoded goes to the handler: gRPC would call it a bug of ours."""
    if deserialize is None:
        return None

    def decode(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError as error:
            return _Undecodable(complaint=str(error))

    return decode


def _check_decoded(request: Any) -> None:
    if isinstance(request, _Undecodable):
        raise InvalidRequest(
            f"the request is not the message it should be, or a text in it is not UTF-8: {request.complaint}"
        )
