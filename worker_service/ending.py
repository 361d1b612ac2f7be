"""When a worker process ends: a signal, a closed standard input, a dead device thread.

Knows nothing of servers and devices: it says when it is time to go, and with which exit code.
"""

import asyncio
import os
import signal
from contextlib import suppress
from threading import Event, Thread

from common.logs import get_logger

logger = get_logger(__name__)

STDIN_GRACE_SECONDS = 10.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Collects the reasons to end; used on one event loop.

    A signal drains: the process stays while a coordinator counts on it, at most `drain_timeout`
    seconds. A closed standard input and a dead device thread end it at once.
    """

    def __init__(self, *, drain_timeout: float) -> None:
        self._drain_timeout = drain_timeout
        self._loop = asyncio.get_running_loop()
        self._is_draining = asyncio.Event()
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()

    async def wait(self) -> int:
        """Wait until the process is to end, and return its exit code."""
        drain = asyncio.create_task(self._drain(), name="drain on a signal")
        try:
            return await self._exit_code
        finally:
            drain.cancel()

    def hold(self) -> None:
        """Note that a coordinator counts on this worker."""
        self._is_free.clear()

    def release(self) -> None:
        """Note that no coordinator does any longer."""
        self._is_free.set()

    def device_lost(self, cause: str) -> None:
        """End with code 1: nothing can be computed any more."""
        logger.error("worker ends", extra={"cause": cause})
        self._end(1)

    def watch_signals(self) -> None:
        """Drain on SIGTERM or SIGINT; a second one ends the process at once."""
        for signal_number in SIGNALS:
            self._loop.add_signal_handler(signal_number, self._signalled, signal_number)

    def watch_stdin(self) -> None:
        """End when the other end of standard input is closed, as when the parent process died.

        Should the event loop not get to it, the process exits all the same after
        STDIN_GRACE_SECONDS: nobody else would end it.
        """
        Thread(target=self._read_stdin, name="stdin", daemon=True).start()

    def _signalled(self, signal_number: signal.Signals) -> None:
        logger.info("signal received", extra={"signal": signal_number.name})
        for each in SIGNALS:
            self._loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        self._is_draining.set()

    async def _drain(self) -> None:
        await self._is_draining.wait()
        try:
            async with asyncio.timeout(self._drain_timeout):
                await self._is_free.wait()
        except TimeoutError:
            logger.warning("drain timeout passed while in a generation")
        self._end(0)

    def _read_stdin(self) -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: the process ends already
            self._loop.call_soon_threadsafe(self._end, 0)
        Event().wait(STDIN_GRACE_SECONDS)
        os._exit(0)

    def _end(self, exit_code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)
