"""The thread that touches the device."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from common.errors import WorkerLost
from worker_service.device_thread import DeviceThread


class Death:
    """Records the cause a device thread died of."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.is_told = threading.Event()

    def __call__(self, cause: str) -> None:
        self.causes.append(cause)
        self.is_told.set()


@pytest.fixture
def death() -> Death:
    """Where a death is recorded."""
    return Death()


@pytest.fixture
def device(death: Death) -> Iterator[DeviceThread]:
    """A device thread; one that did not end after the test would count as leaked."""
    thread = DeviceThread(on_death=death)
    yield thread
    thread.close()


async def test_closures_run_in_order_on_one_thread(device: DeviceThread) -> None:
    """Closures run one after the other on the same thread, which is not the caller's."""
    order: list[int] = []

    def work(number: int) -> int:
        order.append(number)
        return threading.get_ident()

    threads = await asyncio.gather(*(device.submit(lambda n=n: work(n)) for n in range(20)))
    assert order == list(range(20))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_result_arrives_before_the_next_closure_ends(device: DeviceThread) -> None:
    """A result reaches its awaiter while the closure behind it still runs."""
    release = threading.Event()
    first = device.submit(lambda: "first")
    second = device.submit(release.wait)
    assert await first == "first"
    assert not second.done()
    release.set()
    assert await second


async def test_error_reaches_the_awaiter_and_the_thread_lives(device: DeviceThread) -> None:
    """An exception is raised where the future is awaited; later closures run."""

    def broken() -> None:
        raise ValueError("no such block")

    with pytest.raises(ValueError, match="no such block"):
        await device.submit(broken)
    assert await device.submit(lambda: 7) == 7


async def test_stop_iteration_does_not_hang_the_awaiter(device: DeviceThread) -> None:
    """StopIteration, which a future cannot hold, arrives as another error."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await device.submit(lambda: next(iter(())))


async def test_cancelled_future_does_not_skip_the_closure(device: DeviceThread) -> None:
    """Giving up a result does not take the closure out of the order."""
    ran = threading.Event()
    release = threading.Event()
    device.submit(release.wait)
    given_up = device.submit(ran.set)
    given_up.cancel()
    release.set()
    await device.submit(lambda: None)
    assert ran.is_set()


async def test_death_fails_waiting_and_later_futures(device: DeviceThread, death: Death) -> None:
    """When the thread dies, nobody waits for ever and the cause is named."""
    release = threading.Event()

    def die() -> None:
        release.wait()
        raise SystemExit("driver gone")

    dying, waiting = device.submit(die), device.submit(lambda: None)
    release.set()
    for future in (dying, waiting):
        with pytest.raises(WorkerLost, match="driver gone"):
            await asyncio.wait_for(future, 5)
    with pytest.raises(WorkerLost, match="driver gone"):
        await device.submit(lambda: None)
    # Told by the dying thread, behind the futures.
    assert death.is_told.wait(5)
    assert len(death.causes) == 1


async def test_closed_thread_finishes_what_is_queued(death: Death) -> None:
    """Closing runs the queued closures, refuses new ones and is not a death."""
    thread = DeviceThread(on_death=death)
    queued = thread.submit(lambda: 1)
    thread.close()
    assert await queued == 1
    with pytest.raises(WorkerLost, match="closed"):
        await thread.submit(lambda: 2)
    assert death.causes == []
