"""When a worker process ends."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from worker_service.ending import SIGNALS, Ending

LONG_SECONDS = 60.0


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Put the handlers back, which an Ending changes for the whole process."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


async def ended(ending: Ending) -> int:
    """The exit code, which must come at once."""
    return await asyncio.wait_for(ending.wait(), 5)


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_ends_an_idle_process(number: signal.Signals) -> None:
    """A process nobody counts on ends at the first signal, with code 0."""
    ending = Ending(drain_timeout=LONG_SECONDS)
    ending.watch_signals()
    os.kill(os.getpid(), number)
    assert await ended(ending) == 0


async def test_signalled_process_stays_until_released() -> None:
    """A member of a generation goes on after SIGTERM until the coordinator releases it."""
    ending = Ending(drain_timeout=LONG_SECONDS)
    ending.watch_signals()
    ending.hold()
    os.kill(os.getpid(), signal.SIGTERM)
    waiting = asyncio.create_task(ending.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    ending.release()
    assert await asyncio.wait_for(waiting, 5) == 0


async def test_drain_timeout_ends_a_held_process() -> None:
    """A coordinator that never releases the worker keeps it for the drain timeout only."""
    ending = Ending(drain_timeout=0.01)
    ending.watch_signals()
    ending.hold()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(ending) == 0


async def test_first_signal_leaves_the_second_to_the_system() -> None:
    """After the first signal the default action is back, so that a second one ends at once."""
    ending = Ending(drain_timeout=LONG_SECONDS)
    ending.watch_signals()
    ending.hold()
    os.kill(os.getpid(), signal.SIGTERM)
    ending.release()
    await ended(ending)
    assert all(signal.getsignal(number) == signal.SIG_DFL for number in SIGNALS)


async def test_lost_device_ends_a_held_process_with_an_error() -> None:
    """Without its device thread a worker ends at once and says so in the exit code."""
    ending = Ending(drain_timeout=LONG_SECONDS)
    ending.hold()
    ending.device_lost("the device thread died")
    assert await ended(ending) == 1


async def test_stuck_device_leaves_at_once_with_its_own_code() -> None:
    """A kernel that does not return cannot be torn down; the code says so to who restarts it."""
    left: list[int] = []
    ending = Ending(drain_timeout=LONG_SECONDS, leave=left.append)
    ending.hold()
    ending.device_stuck("stuck in step 17")
    assert left == [70]


async def test_orphan_ends_when_nobody_claims_it() -> None:
    """Without its parent process a worker has no use for long, also in the middle of a generation."""
    left: asyncio.Queue[int] = asyncio.Queue()
    ending = Ending(drain_timeout=LONG_SECONDS, orphan_seconds=0.01, leave=left.put_nowait)
    ending.hold()
    ending.orphaned(lambda: 3)
    assert await asyncio.wait_for(left.get(), 5) == 0


async def test_orphan_that_is_claimed_stays() -> None:
    """A coordinator with a new epoch takes the place of the parent; a signal ends it as ever."""
    epochs = iter([3, 4, 4])
    ending = Ending(drain_timeout=LONG_SECONDS, orphan_seconds=0.01)
    ending.watch_signals()
    ending.orphaned(lambda: next(epochs))
    waiting = asyncio.create_task(ending.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(waiting, 5) == 0


async def test_signal_ends_an_orphan_at_once() -> None:
    """The coordinator that would have released the worker is gone, so nothing is waited for."""
    ending = Ending(drain_timeout=LONG_SECONDS, orphan_seconds=LONG_SECONDS)
    ending.watch_signals()
    ending.hold()
    ending.orphaned(lambda: 3)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended(ending) == 0
