"""The one thread that touches the device: closures go in, run in order, and come back as futures.

Knows nothing of models or steps. A closure that blocks must do so on something its caller can
cancel: nothing here interrupts it.
"""

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from common.errors import WorkerLost
from common.logs import get_logger

T = TypeVar("T")

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A closure and the future, with its loop, that waits for the result."""

    work: Callable[[], Any]
    future: "Future[Any]"
    loop: AbstractEventLoop

    def run(self) -> None:
        """Run the closure here and settle the future over there."""
        try:
            result = self.work()
        except StopIteration as error:
            # A future refuses StopIteration, and then whoever awaits it would wait for ever.
            self.fail(RuntimeError(f"device work raised {error!r}"))
        except Exception as error:  # noqa: BLE001 -- it is raised again where the future is awaited
            self.fail(error)
        except BaseException as error:
            self.fail(WorkerLost(f"the device thread died of {error!r}"))
            raise
        else:
            self._settle(self.future.set_result, result)

    def fail(self, error: Exception) -> None:
        """Hand an error to whoever awaits the future."""
        self._settle(self.future.set_exception, error)

    def _settle(self, setter: Callable[[Any], None], value: object) -> None:
        def settle() -> None:
            if not self.future.done():
                setter(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(settle)


class DeviceThread:
    """Runs closures one at a time, in the order of submission, on a thread of its own.

    The thread is a daemon: a kernel that never returns cannot keep the process alive. When it dies
    every future, waiting or new, fails with WorkerLost, and `on_death` is called from that thread.
    """

    def __init__(self, *, on_death: Callable[[str], None]) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._on_death = on_death
        self._lock = Lock()
        self._end_cause: str | None = None
        Thread(target=self._run, name="device", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue a closure; the future belongs to the running loop.

        Cancelling the future gives up the result; the closure runs nevertheless, as those behind it
        were queued on top of what it changes.
        """
        loop = get_running_loop()
        job = _Job(work=work, future=loop.create_future(), loop=loop)
        with self._lock:
            if self._end_cause is None:
                self._jobs.put(job)
            else:
                job.fail(WorkerLost(f"the device thread ended: {self._end_cause}"))
        return job.future

    def close(self) -> None:
        """Let the thread end after the closures already queued; does not wait for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job.run()
        except BaseException as error:
            logger.exception("device thread died")
            self._end(f"it died of {error!r}")
            self._on_death(f"the device thread died of {error!r}")
        else:
            self._end("it was closed")

    def _end(self, cause: str) -> None:
        with self._lock:
            self._end_cause = cause
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.fail(WorkerLost(f"the device thread ended: {cause}"))
