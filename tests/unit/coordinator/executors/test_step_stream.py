"""The step stream against calls made of two queues: order, errors, a call that ends or is replaced."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, Metadata

from common.errors import InvalidStep, WorkerLost
from common.rpc.status import ERROR_CLASS_KEY
from common.step import ExecutePending, Phase, StepId, StepKey
from coordinator.executors.step_stream import CallEnd, StepAnswer, StepStream


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


class Replacements:
    """The stream's `replace`: collects how calls end, and gives the next call when there is one."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[CallEnd] = asyncio.Queue()
        self.next_call: QueueCall | None = None

    async def replace(self, end: CallEnd) -> QueueCall | None:
        """Note the end; the next call is given once."""
        self.ends.put_nowait(end)
        call, self.next_call = self.next_call, None
        return call


def rpc_error(
    code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
) -> AioRpcError:
    """How a call that failed raises."""
    return AioRpcError(code, Metadata(), Metadata(*trailing), details=details)


BREAK = rpc_error(grpc.StatusCode.UNAVAILABLE, "Socket closed")


@pytest.fixture
async def call():
    """The first call under the stream."""
    return QueueCall()


@pytest.fixture
async def replacements():
    """Who is asked when a call has ended."""
    return Replacements()


@pytest.fixture
async def stream(call, replacements):
    """A stream that decodes nothing, closed at the end."""
    opened = StepStream(
        call, name="x", decode=lambda response: response, replace=replacements.replace
    )
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
    ("end", "expected"),
    [
        (EOF, CallEnd(cause="it ended the step stream")),
        (BREAK, CallEnd(cause="connection closed: Socket closed", is_broken=True)),
        (
            rpc_error(grpc.StatusCode.INTERNAL, "Internal error from Core"),
            CallEnd(cause="connection closed: Internal error from Core", is_broken=True),
        ),
        (
            rpc_error(grpc.StatusCode.ABORTED, "a newer one"),
            CallEnd(cause="it ended the step stream: a newer one"),
        ),
        (
            rpc_error(grpc.StatusCode.UNAVAILABLE, "draining", ((ERROR_CLASS_KEY, "Unavailable"),)),
            CallEnd(cause="it ended the step stream: draining"),
        ),
    ],
)
async def test_end_of_the_call_is_reported_with_its_cause(
    stream, call, replacements, end, expected
):
    """What gRPC says of itself is a broken connection; unanswered steps wait for a verdict."""
    future = stream.submit(step(1), 1)
    call.answers.put_nowait(end)
    assert await replacements.ends.get() == expected
    assert not future.done()


async def test_answer_out_of_order_ends_the_call(stream, call, replacements):
    """An answer to another step than the oldest unanswered one is never given to it."""
    future = stream.submit(step(1), 1)
    call.answers.put_nowait(answer(2))
    end = await replacements.ends.get()
    assert end == CallEnd(cause="it answered step 2 out of order")
    assert not future.done()


async def test_new_call_gets_what_is_unanswered_in_order(stream, call, replacements):
    """Answered steps are not sent again; those sent, unsent and submitted later follow in order."""
    replacements.next_call = second = QueueCall()
    futures = [stream.submit(step(number), number) for number in (1, 2, 3)]
    call.answers.put_nowait(answer(1))
    await futures[0]
    call.answers.put_nowait(BREAK)
    await replacements.ends.get()
    futures.append(stream.submit(step(4), 4))
    assert [await second.requests.get() for _ in range(3)] == [2, 3, 4]
    assert second.requests.empty()
    for number in (2, 3, 4):
        second.answers.put_nowait(answer(number))
    results = await asyncio.gather(*futures)
    assert [result.key.step_id.step for result in results] == [1, 2, 3, 4]


async def test_steps_submitted_while_there_is_no_call_wait_for_the_next_one(call):
    """A step submitted during the search for the worker is neither lost nor sent twice."""
    is_searching, is_found = asyncio.Event(), asyncio.Event()
    second = QueueCall()

    async def replace_when_found(end: CallEnd) -> QueueCall:
        is_searching.set()
        await is_found.wait()
        return second

    stream = StepStream(call, name="x", decode=lambda answer: answer, replace=replace_when_found)
    call.answers.put_nowait(BREAK)
    await is_searching.wait()
    future = stream.submit(step(1), 1)
    is_found.set()
    second.answers.put_nowait(answer(1))
    assert (await future).key.step_id == step(1)
    assert (second.requests.get_nowait(), second.requests.empty()) == (1, True)
    await stream.close()


async def test_abandoned_step_is_sent_again(stream, call, replacements):
    """The steps behind one that nobody waits for build on it."""
    replacements.next_call = second = QueueCall()
    abandoned = stream.submit(step(1), 1)
    abandoned.cancel()
    call.answers.put_nowait(BREAK)
    assert await second.requests.get() == 1


async def test_ended_call_is_cancelled(stream, call, replacements):
    """Nothing of a call that is over can still arrive."""
    replacements.next_call = QueueCall()
    call.answers.put_nowait(BREAK)
    await replacements.ends.get()
    assert call.is_cancelled


async def test_failed_stream_fails_all_steps_old_and_new(stream):
    """After `fail` there is no step left that nobody answers."""
    old = stream.submit(step(1), 1)
    stream.fail(WorkerLost("killed by SIGKILL"))
    new = stream.submit(step(2), 2)
    for future in (old, new):
        with pytest.raises(WorkerLost, match="SIGKILL"):
            await future


async def test_closing_cancels_the_call_and_fails_what_is_unanswered(stream, call, replacements):
    """Closing is no loss: the owner is not told, the waiting steps are."""
    future = stream.submit(step(1), 1)
    await stream.close()
    with pytest.raises(WorkerLost, match="closed the step stream"):
        await future
    assert call.is_cancelled
    assert replacements.ends.empty()
