"""Bodies over HTTP are read up to a limit; what passes it is refused while it arrives."""

import asyncio

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import RequestTooLarge

LINGER_SECONDS = 2.0


class BodyLimit:
    """Raises RequestTooLarge in whoever reads a body of more than max_bytes."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        """Guard the application."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            receive = _LimitedBody(scope, receive, max_bytes=self._max_bytes)
        await self._app(scope, receive, send)


class _LimitedBody:
    """Counts what a client sends; a length announced in advance is refused before it is read."""

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int) -> None:
        announced = Headers(scope=scope).get("content-length", "")
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = int(announced) if announced.isdecimal() else 0
        self._is_announced = bool(self._num_bytes)
        self._is_refused = False

    async def __call__(self) -> Message:
        """The next message."""
        if self._is_refused:
            return await self._receive()
        self._check()
        message = await self._receive()
        if not self._is_announced:
            self._num_bytes += len(message.get("body", b""))
            self._check()
        return message

    def _check(self) -> None:
        if self._num_bytes > self._max_bytes:
            self._is_refused = True
            raise RequestTooLarge(
                f"the request has more than {self._max_bytes} bytes, the most that are read"
            )


class UnreadBodyResponse(Response):
    """Sends an answer while the client still sends its body, and closes the connection.

    What still comes is read and dropped for a moment: a connection closed over unread bytes is
    reset, and many clients never see the answer then.
    """

    def __init__(self, answer: Response) -> None:
        """Send this answer."""
        super().__init__()
        self.status_code = answer.status_code
        self.body = answer.body
        self.raw_headers = [*answer.raw_headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        # Who waits to be told to go on has sent nothing, and reading would tell it to.
        if "expect" not in Headers(scope=scope):
            await _read_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read_rest(receive: Receive) -> None:
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
