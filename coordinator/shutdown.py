"""When a coordinator is asked to end: the first signal drains, the second ends it at once."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AT_ONCE_EXIT_CODE = 1


class ShutdownRequest:
    """Waits for a signal to end; used on one event loop."""

    def __init__(self) -> None:
        """Begin without a request."""
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Ask for an orderly end."""
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether an end was asked for."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Wait until an end is asked for."""
        await self._asked.wait()

    async def interrupt(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, or cancel it when an end is asked for; its errors are raised."""
        worker = asyncio.create_task(work, name="interruptible work")
        watcher = asyncio.create_task(self.wait(), name="shutdown request")
        try:
            await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            worker.cancel()
            await asyncio.wait({worker, watcher})
        if not worker.cancelled():
            worker.result()

    def watch_signals(self) -> None:
        """Take SIGTERM and SIGINT until `unwatch_signals`; the main thread's loop alone can."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

    def unwatch_signals(self) -> None:
        """Give the signals back."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        logger.info("signal received", extra={"signal": number.name})
        if self.is_asked:
            # Local workers see their stdin close and end by themselves.
            os._exit(AT_ONCE_EXIT_CODE)
        self.ask()
