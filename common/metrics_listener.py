"""A port where Prometheus reads a registry over HTTP, served by the running event loop.

Answers `GET /metrics` and closes the connection; all other paths are not found. For processes that
have no HTTP server, so the protocol is as small as a scrape needs.
"""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from common.config import join_address, split_address
from common.listening import listen

MAX_HEAD_BYTES = 16 << 10
READ_SECONDS = 10.0
"""Time a client has for its request, and for reading the answer."""

MAX_CONNECTIONS = 16


class MetricsListener:
    """One listening socket: made, then `start`, then `stop`.

    address is HOST:PORT, port 0 picks a free one. Raises ConfigError when it cannot be had.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, port = split_address("metrics_listen", address)
        self._registry = registry
        self._socket = listen(host, port, backlog=MAX_CONNECTIONS)
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.address = join_address(host, self._socket.getsockname()[1])
        """Where it is reached."""

    async def start(self) -> None:
        """Answer from now on."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._socket, limit=MAX_HEAD_BYTES
        )

    async def stop(self) -> None:
        """Take no more connections, drop those that are open, and give the address back."""
        # In this order: a server looks its socket up by a number that a closed one has lost.
        if self._server is not None:
            self._server.close()
        self._socket.close()
        # Not cancelled: asyncio calls a cancelled connection a bug of ours.
        for writer in self._serving.values():
            writer.transport.abort()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            async with asyncio.timeout(READ_SECONDS):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that is slow, gone or speaks something else gets no answer
        finally:
            del self._serving[task]
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        if len(self._serving) > MAX_CONNECTIONS:
            return _response("503 Service Unavailable", b"too many connections\n")
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET is answered\n")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", b"metrics are at /metrics\n")
        body = generate_latest(self._registry)
        answer = _response("200 OK", body, content_type=CONTENT_TYPE_LATEST)
        return answer if method == b"GET" else answer[: -len(body)]


class NoMetricsListener:
    """Listens nowhere."""

    address = ""

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""


def metrics_listener(
    address: str | None, registry: CollectorRegistry
) -> MetricsListener | NoMetricsListener:
    """The listener at HOST:PORT, or the one that listens nowhere."""
    return NoMetricsListener() if address is None else MetricsListener(address, registry)


def _response(status: str, body: bytes, *, content_type: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
