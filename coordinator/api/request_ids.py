"""The id of a request over HTTP: the client's X-Request-Id or one of ours, told in every answer."""

import uuid
from collections.abc import Mapping

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.logs import bind_log_context
from common.trace_context import log_fields, read_trace_context

HEADER = "X-Request-Id"
STATE_KEY = "request_id"
OTHER_PREFIX = "req-"


class RequestIds:
    """Gives every request an id, puts it into its log lines, and its answer under the same header."""

    def __init__(self, app: ASGIApp, *, prefixes: Mapping[str, str]) -> None:
        """prefixes of the ids we draw, by path; what a client sends is kept as it is."""
        self._app = app
        self._prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        prefix = self._prefixes.get(scope["path"], OTHER_PREFIX)
        request_id = headers.get(HEADER) or f"{prefix}{uuid.uuid4().hex}"
        scope.setdefault("state", {})[STATE_KEY] = request_id
        bind_log_context(request_id=request_id, **log_fields(read_trace_context(headers)))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def request_id_of(request: Request) -> str:
    """The id of the request; unchecked when it is the client's."""
    return request.scope["state"][STATE_KEY]
