"""Workers as child processes of the coordinator, spoken to like remote ones.

A child gets its settings as flags, says where it listens in one JSON line on stdout, logs to the
coordinator's stderr, and ends when its stdin closes: so none outlives a coordinator that was killed.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

from common.config import ClusterConfig
from common.config_loader import child_environment
from common.errors import WorkerLost
from coordinator.executors.remote import RemoteWorker

READY_TIMEOUT = 120.0
"""Seconds a child may take to import its libraries and bind its ports."""

EXIT_GRACE = 8.0
"""Seconds between SIGTERM and SIGKILL: enough for a child to finish the kernel it runs."""

CAUSE_TIMEOUT = 0.5
"""Seconds to wait, after a connection broke, for the exit that explains it."""

logger = logging.getLogger(__name__)


class WorkerProcess:
    """One child process from its start until it was waited for."""

    def __init__(self, process: Process, *, name: str) -> None:
        self.address = ""
        self._name = name
        self._process = process
        self._is_killed = False
        self._seen_cause: str | None = None
        self._exit_callbacks: list[Callable[[str], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, flags: Sequence[str], *, name: str) -> "WorkerProcess":
        """Spawn `python -m worker_service` and wait until it listens.

        Raises WorkerLost, and leaves no process, when it exits or takes more than READY_TIMEOUT.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "worker_service",
            *flags,
            stdin=PIPE,
            stdout=PIPE,
            env=child_environment(),
            # Ctrl-C in a terminal is for the coordinator, which drains before it ends its workers.
            process_group=0,
        )
        child = cls(process, name=name)
        try:
            async with asyncio.timeout(READY_TIMEOUT):
                child.address = await child._read_address()
        except BaseException as error:
            await child.end()
            if isinstance(error, TimeoutError):
                raise WorkerLost(f"{name} was not ready after {READY_TIMEOUT:.0f} s") from None
            raise
        child._tasks = [
            asyncio.create_task(child._log_output(), name=f"output of {name}"),
            asyncio.create_task(child._watch(), name=f"exit of {name}"),
        ]
        return child

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the child has neither ended nor been killed by this object."""
        return self._process.returncode is None and not self._is_killed

    def kill(self) -> None:
        """End the child at once; `end` waits for it."""
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def on_exit(self, callback: Callable[[str], None]) -> None:
        """Call back once with the cause when the child ends by itself; at once when it has ended."""
        if self._seen_cause is None:
            self._exit_callbacks.append(callback)
        else:
            callback(self._seen_cause)

    async def exit_cause(self) -> str | None:
        """How the child ended, or None when it still runs after CAUSE_TIMEOUT."""
        try:
            async with asyncio.timeout(CAUSE_TIMEOUT):
                return _cause(await self._process.wait())
        except TimeoutError:
            return None

    async def end(self) -> None:
        """Ask the child to end, kill it after EXIT_GRACE, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_GRACE):
                await self._process.wait()
        except TimeoutError:
            logger.warning("%s did not end within %.0f s and is killed", self._name, EXIT_GRACE)
            self._process.kill()
            await self._process.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read_address(self) -> str:
        """The address in the ready line; other lines on stdout are some library's and are logged."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            address = _ready_address(line)
            if address is not None:
                return address
            self._log_line(line)
        cause = _cause(await self._process.wait())
        raise WorkerLost(f"{self._name} {cause} before it was ready; its log lines say why")

    async def _log_output(self) -> None:
        # Unread output would fill the pipe and block the child.
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._log_line(line)

    def _log_line(self, line: bytes) -> None:
        logger.info("%s printed: %s", self._name, line.decode(errors="replace").rstrip())

    async def _watch(self) -> None:
        cause = self._seen_cause = _cause(await self._process.wait())
        for callback in self._exit_callbacks:
            callback(cause)


class LocalWorker(RemoteWorker):
    """A connection to a child process, whose exit explains a broken one; the process is another's."""

    def __init__(self, process: WorkerProcess) -> None:
        super().__init__(process.address)
        self.process = process
        process.on_exit(self.lose)

    async def find_cause(self, seen: str) -> str:
        """How the child ended, when it did."""
        return await self.process.exit_cause() or seen


def worker_flags(config: ClusterConfig, stage: int) -> list[str]:
    """The command line of the worker of one stage."""
    return [
        "--listen=127.0.0.1:0",
        f"--device={config.devices[stage] if config.devices else config.device}",
        f"--attention-backend={config.attention_backend}",
        f"--cudagraph-mode={config.cudagraph_mode}",
        f"--threads={config.threads or max(1, available_cores() // config.num_stages)}",
        "--exit-with-stdin",
    ]


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _ready_address(line: bytes) -> str | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    is_ready = isinstance(event, dict) and event.get("event") == "ready"
    return event["address"] if is_ready else None


def _cause(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
