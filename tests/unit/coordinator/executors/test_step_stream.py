"""The step stream against a call made of two queues: order, errors, the end of the call."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, Metadata

from common.errors import InvalidStep, WorkerLost
from common.step import ExecutePending, Phase, StepId, StepKey
from coordinator.executors.step_stream import StepAnswer, StepStream


def step(number: int) -> StepId:
    """A step of the first generation."""
    return StepId(epoch=1, generation=1, step=number)


def answer(number: int, outcome: Any = None) -> StepAnswer:
    """An answer to a step; without an outcome that it is pending."""
    pending = ExecutePending(key=StepKey(step_id=step(number), phase=Phase.EXECUTE))
    return StepAnswer(step_id=step(number), outcome=outcome or pending)


class QueueCall:
    """A call whose other side is the test: it takes requests and gives answers or an error."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.is_cancelled = False

    async def read(self) -> Any:
        """The next answer; an exception is raised."""
        item = await self.answers.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def write(self, request: Any) -> None:
        """Take a request."""
        self.requests.put_nowait(request)

    def cancel(self) -> bool:
        """Remember it."""
        self.is_cancelled = True
        return True


class Ends:
    """Collects the causes a stream reports."""

    def __init__(self) -> None:
        self.causes: asyncio.Queue[str] = asyncio.Queue()

    async def note(self, cause: str) -> None:
        """The stream's `on_end`."""
        self.causes.put_nowait(cause)


@pytest.fixture
async def call():
    """A call under the stream."""
    return QueueCall()


@pytest.fixture
async def ends():
    """What the stream says when it ends."""
    return Ends()


@pytest.fixture
async def stream(call, ends):
    """A stream that decodes nothing, closed at the end."""
    opened = StepStream(call, name="x", decode=lambda response: response, on_end=ends.note)
    yield opened
    await opened.close()


async def test_requests_go_out_before_any_answer(stream, call):
    """A second step is sent while the first is unanswered."""
    futures = [stream.submit(step(number), f"request {number}") for number in (1, 2)]
    assert [await call.requests.get() for _ in futures] == ["request 1", "request 2"]
    assert not any(future.done() for future in futures)


async def test_answers_resolve_in_order(stream, call):
    """Each answer belongs to the oldest unanswered step; an error is that step's alone."""
    futures = [stream.submit(step(number), number) for number in (1, 2, 3)]
    for outcome in (answer(1), answer(2, InvalidStep("row 3")), answer(3)):
        call.answers.put_nowait(outcome)
    first, second, third = await asyncio.gather(*futures, return_exceptions=True)
    assert (first.key.step_id, third.key.step_id) == (step(1), step(3))
    assert isinstance(second, InvalidStep)


async def test_abandoned_step_does_not_disturb_its_successor(stream, call):
    """An answer nobody waits for any more is taken off the stream all the same."""
    abandoned, wanted = stream.submit(step(1), 1), stream.submit(step(2), 2)
    abandoned.cancel()
    call.answers.put_nowait(answer(1))
    call.answers.put_nowait(answer(2))
    assert (await wanted).key.step_id == step(2)


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (EOF, "it ended the step stream"),
        (
            AioRpcError(
                grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details="Socket closed"
            ),
            "connection closed: Socket closed",
        ),
        (
            AioRpcError(grpc.StatusCode.ABORTED, Metadata(), Metadata(), details="a newer one"),
            "it ended the step stream: a newer one",
        ),
    ],
)
async def test_end_of_the_call_is_reported_with_its_cause(stream, call, ends, end, cause):
    """The owner hears why, once; unanswered steps wait for its verdict."""
    future = stream.submit(step(1), 1)
    call.answers.put_nowait(end)
    assert await ends.causes.get() == cause
    assert not future.done()


async def test_answer_out_of_order_ends_the_stream(stream, call, ends):
    """An answer to another step than the oldest unanswered one is never given to it."""
    future = stream.submit(step(1), 1)
    call.answers.put_nowait(answer(2))
    assert await ends.causes.get() == "it answered step 2 out of order"
    assert not future.done()


async def test_failed_stream_fails_all_steps_old_and_new(stream):
    """After `fail` there is no step left that nobody answers."""
    old = stream.submit(step(1), 1)
    stream.fail(WorkerLost("killed by SIGKILL"))
    new = stream.submit(step(2), 2)
    for future in (old, new):
        with pytest.raises(WorkerLost, match="SIGKILL"):
            await future


async def test_closing_cancels_the_call_and_fails_what_is_unanswered(stream, call, ends):
    """Closing is no loss: the owner is not told, the waiting steps are."""
    future = stream.submit(step(1), 1)
    await stream.close()
    with pytest.raises(WorkerLost, match="closed the step stream"):
        await future
    assert call.is_cancelled
    assert ends.causes.empty()
