"""Serves an ASGI application over HTTP on the running event loop, without touching signals."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from common.listening import listen

GRACE_SECONDS = 2
BACKLOG = 2048


class HttpServer:
    """One listening socket and the server on it: made, then `serve` runs until `stop`."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        """Listen; port 0 picks a free one. Raises ConfigError when the address cannot be had."""
        self._socket = listen(host, port, backlog=BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )

    async def serve(self) -> None:
        """Answer until stopped; open answers get GRACE_SECONDS to end then."""
        with self._socket:
            await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Take no more connections and let `serve` return."""
        self._server.should_exit = True

    def close(self) -> None:
        """Give the address back when `serve` never ran."""
        self._socket.close()


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
