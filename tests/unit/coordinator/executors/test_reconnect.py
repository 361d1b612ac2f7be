"""Looking for a worker after its connection broke: found, refused, out of reach, another one."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from common.errors import Fenced, Unavailable, WorkerLost
from common.worker_api import PROTOCOL_VERSION, WorkerInfo
from coordinator.executors.reconnect import RECONNECT_WINDOW, Membership, compare, find_again

KNOWN = Membership(incarnation="abc", epoch=2, generation=5)


def info(*, incarnation: str = "abc", epoch: int = 2, generation: int = 5) -> WorkerInfo:
    """What the worker says when it is reached."""
    return WorkerInfo(
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        build="",
        incarnation=incarnation,
        device="cpu",
        memory_bytes=0,
        dtypes=(),
        tensor_endpoint="",
        state="SERVING",
        epoch=epoch,
        generation=generation,
    )


@pytest.fixture
def listening() -> Iterator[str]:
    """An address where connections are taken, and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


async def test_worker_that_answers_later_is_found(listening):
    """Attempts go on while the port takes connections."""
    attempts = 0

    async def describe() -> WorkerInfo:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("Connection reset by peer")
        return info()

    assert await find_again(listening, describe, known=KNOWN) is None
    assert attempts == 3


async def test_refused_connection_ends_the_search_at_once(refusing):
    """A port without a listener has no process behind it."""

    async def describe() -> WorkerInfo:
        raise Unavailable("failed to connect to all addresses")

    async with asyncio.timeout(RECONNECT_WINDOW / 2):
        error = await find_again(refusing, describe, known=KNOWN)
    assert (type(error), str(error)) == (WorkerLost, "nobody listens at its port")


@pytest.mark.parametrize("is_silent", [False, True])
async def test_search_ends_with_the_window(listening, is_silent):
    """A port that takes connections and closes them, or keeps silent, is lost after a second."""

    async def describe() -> WorkerInfo:
        if is_silent:
            await asyncio.Event().wait()
        raise Unavailable("Socket closed")

    async with asyncio.timeout(RECONNECT_WINDOW + 0.5):
        error = await find_again(listening, describe, known=KNOWN)
    assert (type(error), str(error)) == (WorkerLost, "it is out of reach for 1 s")


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (info(incarnation="def"), WorkerLost, "restarted"),
        (info(incarnation="def", epoch=9), WorkerLost, "restarted"),
        (info(epoch=3), Fenced, "a coordinator with epoch 3, not 2"),
        (info(epoch=3, generation=1), Fenced, "epoch 3"),
        (info(generation=6), WorkerLost, "left generation 5"),
    ],
)
def test_worker_that_is_no_longer_what_it_was(said, kind, text):
    """Each way of not being the same has its error."""
    error = compare(said, known=KNOWN)
    assert type(error) is kind
    assert text in str(error)


def test_outside_a_generation_the_process_alone_counts():
    """Before it joins, a worker's epoch and generation may be anybody's."""
    assert compare(info(epoch=7), known=Membership(incarnation="abc")) is None
    assert compare(info(), known=KNOWN) is None
