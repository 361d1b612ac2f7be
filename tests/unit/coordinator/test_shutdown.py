"""The first signal asks for an orderly end, the second ends the process at once."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.shutdown import ShutdownRequest

ROOT = Path(__file__).parents[3]

STUBBORN = """
import asyncio, os, signal
from coordinator.shutdown import ShutdownRequest

async def main():
    shutdown = ShutdownRequest()
    shutdown.watch_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    await shutdown.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_asks_for_an_end(number):
    """Both signals are taken, and given back afterwards."""
    before = signal.getsignal(number)
    shutdown = ShutdownRequest()
    shutdown.watch_signals()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(shutdown.wait(), timeout=1)
    shutdown.unwatch_signals()
    assert shutdown.is_asked
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)


def test_a_second_signal_ends_the_process():
    """A process that drains for ever exits with 1 on the second signal."""
    assert subprocess.run([sys.executable, "-c", STUBBORN], cwd=ROOT, timeout=20).returncode == 1


async def test_work_is_interrupted_when_an_end_is_asked_for():
    """Work that waits is cancelled, and cleaned up before the interruption returns."""
    shutdown = ShutdownRequest()
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            cleaned = True

    asyncio.get_running_loop().call_soon(shutdown.ask)
    await shutdown.interrupt(work())
    assert cleaned


async def test_work_ends_by_itself_or_raises():
    """Without a request the work's end is the end, and its error is raised."""

    async def fail() -> None:
        raise LookupError

    shutdown = ShutdownRequest()
    await shutdown.interrupt(asyncio.sleep(0))
    with pytest.raises(LookupError):
        await shutdown.interrupt(fail())


async def test_a_cancelled_caller_cancels_its_work():
    """Nothing runs on when whoever waits is cancelled."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = asyncio.create_task(ShutdownRequest().interrupt(work()))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
