"""Server-sent events over HTTP, and readers that leave while an answer is made."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from common.errors import Cancelled

Result = TypeVar("Result")

DONE = "[DONE]"

# Made once: json.dumps makes an encoder for every call that asks for other separators.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(payload: dict[str, Any] | str) -> bytes:
    """Frame one event; an object is written as JSON, on one line."""
    if not isinstance(payload, str):
        payload = to_json(payload)
    return f"data: {payload}\n\n".encode()


class TextEvents:
    """Frames events that differ in one text alone; what is around it is written once."""

    def __init__(self, payload_of: Callable[[str], dict[str, Any]]) -> None:
        """payload_of gives the object with a text in it, in one place."""
        mark = "\ue000the text\ue000"
        self._before, _, self._after = event(payload_of(mark)).rpartition(to_json(mark).encode())

    def event(self, text: str) -> bytes:
        """Frame the event with this text."""
        return self._before + to_json(text).encode() + self._after


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work, or cancel it and raise Cancelled as soon as the client closes the connection.

    The request's body has been read: what `receive` gives next is the end of the connection.
    """
    worker = asyncio.create_task(work, name="http answer")
    watcher = asyncio.create_task(_client_left(receive), name="http disconnect")
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise Cancelled("the client closed the connection")
        return worker.result()
    finally:
        worker.cancel()
        watcher.cancel()
        # The work must have let go of its request before the next one can count on its blocks.
        await asyncio.gather(worker, watcher, return_exceptions=True)


class EventStreamResponse(Response):
    """Sends framed events as they come and stops at once when the client leaves.

    What the frames are made of is let go of in every case.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes], *, on_close: Callable[[], Awaitable[None]]
    ) -> None:
        """Send the frames; on_close is awaited in every case, also when none was sent."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # How much will come is not known; HTTP/1.1 then sends it in chunks.
        del self.headers["content-length"]
        self._frames = frames
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await unless_client_leaves(receive, self._send_all(send))
        except (Cancelled, OSError):
            # Nobody is left to be told.
            return
        finally:
            await self._frames.aclose()
            await self._on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
