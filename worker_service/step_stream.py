"""RunSteps streams: phases are queued on the worker as they arrive and answered in their order.

A phase is queued without waiting for the answer to the one before it, so the device goes from step
to step without a round trip. The end of a stream releases nothing: steps already queued still run,
and their answers are given to whoever sends the steps again.
"""

import asyncio
from asyncio import Future, Queue, TaskGroup, get_running_loop
from dataclasses import dataclass
from typing import Any

from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it
from stepwire.v1 import worker_pb2

from common.codecs.stream_codec import (
    decode_execute_model,
    decode_sample_tokens,
    encode_stream_answer,
)
from common.errors import Fenced, InvalidStep, ServiceError, StepFailed
from common.logs import get_logger
from common.step import Phase, StepId, StepKey
from worker_service.worker import Worker

logger = get_logger(__name__)

# Far above the steps in flight of any pipeline: bounds what a runaway client can queue.
MAX_UNANSWERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submitted:
    """A phase whose answer is due: the key an error is answered with, and the result to come."""

    key: StepKey
    result: "Future[Any]"


class OpenStreams:
    """The open step streams of one worker: the newest that carries its generation's steps wins."""

    def __init__(self) -> None:
        self._streams: set[StepStream] = set()
        self._current: StepStream | None = None

    def add(self, stream: "StepStream") -> None:
        """Note a stream that opened."""
        self._streams.add(stream)

    def discard(self, stream: "StepStream") -> None:
        """Forget a stream that is over."""
        self._streams.discard(stream)
        if self._current is stream:
            self._current = None

    def take_over(self, stream: "StepStream") -> None:
        """Make a stream the current one; the one that was ends."""
        older, self._current = self._current, stream
        if older is not None and older is not stream:
            older.end("a newer step stream took over")

    def end_all(self, reason: str) -> None:
        """End every stream that is open now."""
        for stream in self._streams:
            stream.end(reason)


class StepStream:
    """Serves the items of one stream on one worker; `context` is the RPC's read/write context."""

    def __init__(self, worker: Worker, context: Any, streams: OpenStreams) -> None:
        self._worker = worker
        self._context = context
        self._streams = streams
        self._submitted: Queue[_Submitted | None] = Queue(MAX_UNANSWERED)
        self._end: Future[str] = get_running_loop().create_future()

    def end(self, reason: str) -> None:
        """Make `serve` raise Fenced with the reason; only the first one counts."""
        if not self._end.done():
            self._end.set_result(reason)

    async def serve(self) -> None:
        """Read and answer until the client has closed its side and everything is answered.

        Raises Fenced when the stream was ended. A client that is gone cancels the RPC, and with it
        this call. What is left unanswered is dropped without a word.
        """
        self._streams.add(self)
        serving = asyncio.create_task(self._serve(), name="step stream")
        try:
            await asyncio.wait({serving, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                raise Fenced(self._end.result())
            await serving
        finally:
            self._streams.discard(self)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            self._drop_unanswered()

    async def _serve(self) -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(self._read(), name="step stream reader")
            tasks.create_task(self._answer(), name="step stream writer")

    def _drop_unanswered(self) -> None:
        while not self._submitted.empty():
            left = self._submitted.get_nowait()
            if left is not None:
                _drop(left.result)

    async def _read(self) -> None:
        while (item := await self._context.read()) is not EOF and not self._end.done():
            await self._submitted.put(self._submit(item))
        await self._submitted.put(None)

    async def _answer(self) -> None:
        while (submitted := await self._submitted.get()) is not None:
            await self._context.write(await _result_of(submitted))

    def _submit(self, item: worker_pb2.RunStepsRequest) -> _Submitted:
        """Queue an item on the worker; a malformed one gets its error as the result."""
        key = _key_of(item)
        if self._worker.is_current(key.step_id):
            self._streams.take_over(self)
        try:
            result = self._queue(item)
        except ServiceError as error:
            result = get_running_loop().create_future()
            result.set_exception(error)
        return _Submitted(key=key, result=result)

    def _queue(self, item: worker_pb2.RunStepsRequest) -> "Future[Any]":
        match item.WhichOneof("item"):
            case "execute":
                request = decode_execute_model(item.execute)
                return self._worker.submit_execute(request, sample=item.sample_with_execute)
            case "sample":
                return self._worker.submit_sample(*decode_sample_tokens(item.sample))
            case _:
                raise InvalidStep("item: neither execute nor sample")


def _key_of(item: worker_pb2.RunStepsRequest) -> StepKey:
    """The key an error is answered with: as the client spelled it, right or wrong."""
    if item.WhichOneof("item") == "sample":
        named, phase = item.sample.key, Phase.SAMPLE
    else:
        named = item.execute.scheduler_output
        phase = Phase.SAMPLE if item.sample_with_execute else Phase.EXECUTE
    step_id = StepId(epoch=named.epoch, generation=named.generation, step=named.step)
    return StepKey(step_id=step_id, phase=phase)


async def _result_of(submitted: _Submitted) -> worker_pb2.RunStepsResponse:
    """The answer to a phase once it is known: its result, or the error that took its place."""
    try:
        result = await submitted.result
    except ServiceError as error:
        return encode_stream_answer(error, submitted.key)
    except Exception as error:
        logger.exception("step refused by a bug")
        failure = StepFailed(f"{type(error).__name__}: {error}")
        return encode_stream_answer(failure, submitted.key)
    return encode_stream_answer(result, result.key)


def _drop(result: "Future[Any]") -> None:
    """Give up a result; its error, if it has one, counts as seen."""
    if not result.cancel() and not result.cancelled():
        result.exception()
