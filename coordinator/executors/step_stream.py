"""Steps pipelined over one long-lived stream: requests go out in order, answers come back in order.

Knows neither protobuf messages nor steps' contents: the owner encodes requests and decodes answers.
Does not resend and does not reopen a stream that ended.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unanswered:
    step_id: StepId
    future: "Future[ExecuteResult]"


class StepStream:
    """Owner of one RunSteps call, with a writer and a reader task.

    `on_end` is awaited once, with the cause, when the other side ended the call or broke its order;
    the steps still unanswered then wait for `fail`.
    """

    def __init__(
        self,
        call: StepCall,
        *,
        name: str,
        decode: Callable[[Any], StepAnswer],
        on_end: Callable[[str], Awaitable[None]],
    ) -> None:
        self._call = call
        self._decode = decode
        self._on_end = on_end
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._unanswered: deque[_Unanswered] = deque()
        self._error: ServiceError | None = None
        self._tasks = (
            asyncio.create_task(self._write_requests(), name=f"write steps to {name}"),
            asyncio.create_task(self._read_answers(), name=f"read steps of {name}"),
        )

    def submit(self, step_id: StepId, request: Any) -> "Future[ExecuteResult]":
        """Queue a request without waiting; the future holds its answer or its error."""
        future: Future[ExecuteResult] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._unanswered.append(_Unanswered(step_id=step_id, future=future))
        self._outbox.put_nowait(request)
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
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_requests(self) -> None:
        while True:
            request = await self._outbox.get()
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the call is over; the reader learns why

    async def _read_answers(self) -> None:
        await self._on_end(await self._read_until_end())

    async def _read_until_end(self) -> str:
        """Resolve answers until there are no more; returns why."""
        try:
            while (response := await self._call.read()) is not EOF:
                answer = self._decode(response)
                if not self._unanswered or answer.step_id != self._unanswered[0].step_id:
                    return f"it answered step {answer.step_id.step} out of order"
                _resolve(self._unanswered.popleft().future, answer.outcome)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return f"connection closed: {error.details()}"
            return f"it ended the step stream: {error.details()}"
        except ServiceError as error:
            return f"its answer cannot be read: {error}"
        return "it ended the step stream"


def _resolve(future: "Future[ExecuteResult]", outcome: ExecuteResult | ServiceError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(outcome, ServiceError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
