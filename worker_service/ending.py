"""When a worker process ends: a signal, a parent that is gone, a dead or stuck device thread.

Knows nothing of servers and devices: it says when it is time to go, and with which exit code.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from common.logs import get_logger

logger = get_logger(__name__)

DEVICE_LOST_EXIT = 1
HANG_EXIT = 70

ORPHAN_SECONDS = 8.0
"""How long a worker whose parent is gone can be claimed by another coordinator."""

ORPHAN_LIMIT_SECONDS = 10.0
"""How long it lives when none comes, whatever its event loop and its device do."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Collects the reasons to end; used on one event loop.

    A signal drains: the process stays while a coordinator counts on it, at most `drain_timeout`
    seconds. A dead device thread ends it at once, and so does the end of the parent process when no
    other coordinator claims the worker. `leave` ends a process that cannot be torn down.
    """

    def __init__(
        self,
        *,
        drain_timeout: float,
        orphan_seconds: float = ORPHAN_SECONDS,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._drain_timeout = drain_timeout
        self._orphan_seconds = orphan_seconds
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._is_draining = asyncio.Event()
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._is_adopted = Event()
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
        self._end(DEVICE_LOST_EXIT)

    def device_stuck(self, cause: str) -> None:
        """Leave with code 70: a kernel that does not return cannot be stopped otherwise."""
        logger.error("worker ends", extra={"cause": cause, "exit_code": HANG_EXIT})
        self._leave(HANG_EXIT)

    def watch_signals(self) -> None:
        """Drain on SIGTERM or SIGINT; a second one ends the process at once."""
        for signal_number in SIGNALS:
            self._loop.add_signal_handler(signal_number, self._signalled, signal_number)

    def watch_stdin(self, *, epoch: Callable[[], int]) -> None:
        """Count as orphaned once the other end of standard input is closed, as when a parent died.

        Should the event loop not get to it, the process exits all the same after
        ORPHAN_LIMIT_SECONDS: nobody else would end it.
        """
        Thread(target=self._read_stdin, args=(epoch,), name="stdin", daemon=True).start()

    def orphaned(self, epoch: Callable[[], int]) -> None:
        """Leave with code 0 after a while, since the process that started this one is gone.

        A coordinator whose epoch is another than what `epoch` tells now may claim the worker within
        that time; then it stays. Nobody counts on an orphan: a signal ends it at once.
        """
        logger.info("the parent process is gone")
        self.release()
        self._loop.call_later(self._orphan_seconds, self._end_unless_adopted, epoch, epoch())

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

    def _read_stdin(self, epoch: Callable[[], int]) -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: the process ends already
            self._loop.call_soon_threadsafe(self.orphaned, epoch)
        if not self._is_adopted.wait(ORPHAN_LIMIT_SECONDS):
            self._leave(0)

    def _end_unless_adopted(self, epoch: Callable[[], int], epoch_of_parent: int) -> None:
        if epoch() != epoch_of_parent:
            logger.info("another coordinator claimed the orphan", extra={"epoch": epoch()})
            self._is_adopted.set()
            return
        # A tidy end takes seconds on a busy machine, and nobody is left to whom it would matter.
        logger.info("worker ends", extra={"cause": "nobody claimed the orphan"})
        self._leave(0)

    def _end(self, exit_code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)
