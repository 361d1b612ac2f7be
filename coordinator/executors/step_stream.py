"""Steps pipelined over a long-lived stream: requests go out in order, answers come back in order.

A broken call may be replaced: what is unanswered is sent again on the new one, in order, and the
worker answers a step it has run without running it again. Knows neither protobuf messages nor steps'
contents: the owner encodes requests, decodes answers and says whether a broken call is replaced.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it

from common.errors import ServiceError, WorkerLost
from common.step import ExecuteResult, StepId
from coordinator.executors.reconnect import is_connection_error


class StepCall(Protocol):
    """The bidirectional gRPC call under a stream."""

    async def read(self) -> Any:
        """The next answer, or grpc.aio.EOF."""
        ...

    async def write(self, request: Any) -> None:
        """Send one request; returns when the transport has taken it."""
        ...

    def cancel(self) -> bool:
        """End the call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepAnswer:
    """What came back for a step: its result or its error."""

    step_id: StepId
    outcome: ExecuteResult | ServiceError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """Why a call ended; is_broken: its connection did, and nobody ended it on purpose."""

    cause: str
    is_broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unanswered:
    step_id: StepId
    request: Any
    future: "Future[ExecuteResult]"


class StepStream:
    """The steps of one generation on one worker, over one RunSteps call after another.

    `replace` is awaited when the call has ended: it gives the next call, or None when the stream is
    over; the steps still unanswered then wait for `fail`.
    """

    def __init__(
        self,
        call: StepCall,
        *,
        name: str,
        decode: Callable[[Any], StepAnswer],
        replace: Callable[[CallEnd], Awaitable[StepCall | None]],
    ) -> None:
        self._call = call
        self._name = name
        self._decode = decode
        self._replace = replace
        self._unanswered: deque[_Unanswered] = deque()
        self._unsent: asyncio.Queue[Any] = asyncio.Queue()
        self._error: ServiceError | None = None
        self._run_task = asyncio.create_task(self._run(call), name=f"steps of {name}")

    def submit(self, step_id: StepId, request: Any) -> "Future[ExecuteResult]":
        """Queue a request without waiting; the future holds its answer or its error."""
        future: Future[ExecuteResult] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._unanswered.append(_Unanswered(step_id=step_id, request=request, future=future))
        self._unsent.put_nowait(request)
        return future

    def fail(self, error: ServiceError) -> None:
        """End every unanswered and every later step with the error; only the first call counts."""
        if self._error is not None:
            return
        self._error = error
        while self._unanswered:
            future = self._unanswered.popleft().future
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """End the call; unanswered steps fail."""
        self.fail(WorkerLost("the coordinator closed the step stream"))
        self._run_task.cancel()
        await asyncio.gather(self._run_task, return_exceptions=True)
        self._call.cancel()

    async def _run(self, call: StepCall | None) -> None:
        while call is not None:
            self._call = call
            end = await self._exchange(call)
            call.cancel()
            call = await self._replace(end)

    async def _exchange(self, call: StepCall) -> CallEnd:
        """Send what is unanswered, then what is submitted, and resolve answers until the call ends."""
        self._unsent = asyncio.Queue()
        for step in self._unanswered:
            self._unsent.put_nowait(step.request)
        writer = asyncio.create_task(
            _write_requests(call, self._unsent), name=f"write steps to {self._name}"
        )
        try:
            return await self._read_until_end(call)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _read_until_end(self, call: StepCall) -> CallEnd:
        try:
            while (response := await call.read()) is not EOF:
                answer = self._decode(response)
                if not self._unanswered or answer.step_id != self._unanswered[0].step_id:
                    return CallEnd(cause=f"it answered step {answer.step_id.step} out of order")
                _resolve(self._unanswered.popleft().future, answer.outcome)
        except grpc.aio.AioRpcError as error:
            if is_connection_error(error):
                return CallEnd(cause=f"connection closed: {error.details()}", is_broken=True)
            return CallEnd(cause=f"it ended the step stream: {error.details()}")
        except ServiceError as error:
            return CallEnd(cause=f"its answer cannot be read: {error}")
        return CallEnd(cause="it ended the step stream")


async def _write_requests(call: StepCall, requests: "asyncio.Queue[Any]") -> None:
    while True:
        request = await requests.get()
        try:
            await call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over; the reader learns why


def _resolve(future: "Future[ExecuteResult]", outcome: ExecuteResult | ServiceError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(outcome, ServiceError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
