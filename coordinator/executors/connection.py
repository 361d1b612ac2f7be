"""The connection to one worker: unary calls and watches that end when the worker is lost.

Decides between a broken connection and a lost worker, once for all who use the connection. Does not
know what the calls mean.
"""

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it

from common.errors import ServiceError, WorkerLost
from common.rpc.client import connect
from common.rpc.status import from_rpc_error
from common.worker_api import WorkerInfo
from coordinator.executors.reconnect import Membership, find_again, is_connection_error


class WorkerConnection:
    """A channel to HOST:PORT and whether the worker behind it is lost; made on a running event loop.

    describe makes one attempt to ask what the worker is, within RECONNECT_WINDOW seconds.
    explain(seen) may know a better cause of a loss than what the connection showed.
    """

    def __init__(
        self,
        address: str,
        *,
        describe: Callable[[], Awaitable[WorkerInfo]],
        explain: Callable[[str], Awaitable[str]],
    ) -> None:
        self.known = Membership(incarnation="")
        """What the worker has to be when it is looked for after a break."""
        self.is_closing = False
        """Set by who lets go of the worker: nothing is a loss any more."""
        self._address = address
        self._describe = describe
        self._explain = explain
        self.channel = connect(address)
        self._lost: Future[ServiceError] = asyncio.get_running_loop().create_future()
        self._lost_callbacks: list[Callable[[ServiceError], None]] = []
        self._search: Task[bool] | None = None

    @property
    def lost_error(self) -> ServiceError | None:
        """Why the worker is lost, None while it is not."""
        return self._lost.result() if self._lost.done() else None

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Call back with the error when the worker is lost; at once when it is already."""
        if self._lost.done():
            callback(self._lost.result())
        else:
            self._lost_callbacks.append(callback)

    def lose(self, error: ServiceError) -> None:
        """Give the worker up; only the first error counts."""
        if self._lost.done() or self.is_closing:
            return
        self._lost.set_result(error)
        for callback in self._lost_callbacks:
            callback(error)

    async def call(
        self, method: Any, request: Any, *, deadline: float | None, wait_for_ready: bool = False
    ) -> Any:
        """One unary call, ended early by the loss of the worker; never sent twice."""
        asked = self._ask(method, request, timeout=deadline, wait_for_ready=wait_for_ready)
        return await self._unless_lost(asked)

    async def watch(self, method: Any, request: Any) -> AsyncGenerator[Any]:
        """The replies of a server stream, called again when its connection broke or it ended.

        Raises the error of the loss when the worker is lost.
        """
        while True:
            call = method(request)
            seen = "it ended a watch"
            try:
                while (reply := await self._unless_lost(call.read())) is not EOF:
                    yield reply
            except grpc.aio.AioRpcError as error:
                if not is_connection_error(error):
                    raise from_rpc_error(error) from error
                seen = f"connection closed: {error.details()}"
            finally:
                call.cancel()
            if not await self._unless_lost(self.find_again(seen)):
                raise self._lost.result()

    async def find_again(self, seen: str) -> bool:
        """Look for the worker after its connection showed `seen`; when it is not found it is lost.

        Whoever asks while a search is on shares it.
        """
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._look(seen), name=f"find {self._address}")
        return await asyncio.shield(self._search)

    async def close(self) -> None:
        """Close the channel."""
        self.is_closing = True
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        await self.channel.close()

    async def _look(self, seen: str) -> bool:
        error = await find_again(self._address, self._describe, known=self.known)
        if error is not None:
            cause = await self._explain(f"{seen}, and {error}")
            self.lose(type(error)(cause))
        return error is None and not self._lost.done()

    async def _unless_lost(self, awaitable: Awaitable[Any]) -> Any:
        """What is awaited, or the error of the loss when that comes first."""
        waiting = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait({waiting, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise self._lost.result()
        finally:
            waiting.cancel()

    async def _ask(self, method: Any, request: Any, **options: Any) -> Any:
        try:
            return await method(request, **options)
        except grpc.aio.AioRpcError as error:
            if not is_connection_error(error):
                raise from_rpc_error(error) from error
            cause = await self._explain(f"connection closed: {error.details()}")
            raise WorkerLost(cause) from error
