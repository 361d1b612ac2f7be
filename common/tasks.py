"""Named background tasks that live and fail together."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class TaskSupervisor:
    """Runs a service's background tasks inside `async with`.

    A task that raises cancels the others and the block, and its error is raised from the block: one
    crash stops the service. A task may return early. Leaving the block cancels what still runs and
    waits for it.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, name: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of that name; only inside the block."""
        task = self._group.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            error.add_note(f"raised by the background task {task.get_name()!r}")

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in tuple(self._running):
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as crashes:
            if len(crashes.exceptions) == 1:
                raise crashes.exceptions[0] from None
            raise
