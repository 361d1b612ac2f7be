"""Named health states and the grpc.health.v1 service that tells them.

Fed by state, never by asking the device. Lives on the event loop: `set` is called from there alone.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

LIVENESS = ""
WORKER = "stepwire.v1.Worker"
WORKER_STEPS = "stepwire.v1.Worker.Steps"
INFERENCE = "stepwire.v1.Inference"

_Status = health_pb2.HealthCheckResponse


class HealthBoard:
    """Which named services of this process serve; a name is known once it was set."""

    def __init__(self) -> None:
        self._serving_by_name: dict[str, bool] = {}
        self._watchers: set[asyncio.Event] = set()

    def set(self, name: str, serving: bool) -> None:  # noqa: FBT001 - a state, set by value
        """State whether a name serves, and tell everyone who watches."""
        self._serving_by_name[name] = serving
        for watcher in self._watchers:
            watcher.set()

    def is_serving(self, name: str) -> bool:
        """Whether a name was set to serving."""
        return self._serving_by_name.get(name, False)

    def is_known(self, name: str) -> bool:
        """Whether a name was ever set."""
        return name in self._serving_by_name

    def watch(self) -> asyncio.Event:
        """An event set at every change, until given to `unwatch`; the watcher clears it."""
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: asyncio.Event) -> None:
        """Stop telling a watcher."""
        self._watchers.discard(watcher)

    def servicer(self) -> "HealthServicer":
        """The grpc.health.v1 service of this board, for an aio server."""
        return HealthServicer(self)


class HealthServicer(health_pb2_grpc.HealthServicer):
    """grpc.health.v1 on a HealthBoard."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    async def Check(
        self,
        request: health_pb2.HealthCheckRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> health_pb2.HealthCheckResponse:
        """Say whether a name serves; NOT_FOUND when it was never set."""
        if not self._board.is_known(request.service):
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} is known here"
            )
        return _Status(status=self._status(request.service))

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse]:
        """Tell a name's status now and at every change, until the client leaves.

        A name that was never set is SERVICE_UNKNOWN, and may become known later.
        """
        watcher = self._board.watch()
        told = None
        try:
            while True:
                status = self._status(request.service)
                if status != told:
                    yield _Status(status=status)
                    told = status
                await watcher.wait()
                watcher.clear()
        finally:
            self._board.unwatch(watcher)

    def _status(self, name: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        if not self._board.is_known(name):
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._board.is_serving(name) else _Status.NOT_SERVING
