"""Workers for one generation after the other: survivors are kept, what has ended is replaced.

A fleet owns processes and connections. It knows neither steps nor generations.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from common.config import ClusterConfig
from common.errors import ServiceError
from common.worker_api import Rank, WorkerApi
from coordinator.executors.in_process import in_process_worker
from coordinator.executors.local_process import LocalWorker, WorkerProcess, worker_flags
from coordinator.executors.remote import RemoteWorker


class WorkerFleet(Protocol):
    """The workers of a replica."""

    @property
    def connected(self) -> Sequence[WorkerApi]:
        """What `connect` returned last; empty before it did, and while it works."""
        ...

    async def connect(self) -> Sequence[WorkerApi]:
        """The workers, in stage order, for a new generation; those handed out before are over."""
        ...

    def discard(self, stage: int) -> None:
        """Have the next `connect` replace this worker where it can, though it seems to run."""
        ...

    async def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        ...


class RemoteFleet:
    """Workers that others start: a new connection to each address, whoever listens there by then."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._workers: list[RemoteWorker] = []

    @property
    def connected(self) -> Sequence[WorkerApi]:
        """The workers of the connections that stand."""
        return self._workers

    async def connect(self) -> Sequence[WorkerApi]:
        """Connect anew; nobody is called yet."""
        await self.close()
        self._workers = [RemoteWorker(address) for address in self._addresses]
        return self._workers

    def discard(self, stage: int) -> None:
        """Do nothing: a worker that hangs ends itself, and its operator starts another."""

    async def close(self) -> None:
        """Close the connections; the workers stay."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.close() for worker in workers))


class LocalFleet:
    """Child processes, one a stage: a new connection to those that run, a new process for the others."""

    def __init__(self, config: ClusterConfig, *, more_flags: Sequence[str] = ()) -> None:
        """more_flags are given to every process, whatever its stage."""
        self._config = config
        self._more_flags = more_flags
        self._processes: dict[int, WorkerProcess] = {}
        self._workers: list[LocalWorker] = []

    @property
    def connected(self) -> Sequence[WorkerApi]:
        """The workers of the connections that stand."""
        return self._workers

    async def connect(self) -> Sequence[LocalWorker]:
        """Start what is missing, all at once, and connect; raises WorkerLost when one cannot start."""
        await self._disconnect()
        stages = range(self._config.num_stages)
        # All outcomes are waited for, so that no process is started behind the caller's back.
        outcomes = await asyncio.gather(
            *(self._replace_ended(stage) for stage in stages), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self._workers = [LocalWorker(self._processes[stage]) for stage in stages]
        return self._workers

    def discard(self, stage: int) -> None:
        """Kill the process: one that hangs would not end when asked."""
        self._processes[stage].kill()

    async def close(self) -> None:
        """End every process."""
        await self._disconnect()
        processes, self._processes = self._processes, {}
        await asyncio.gather(*(process.end() for process in processes.values()))

    async def _disconnect(self) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def _replace_ended(self, stage: int) -> None:
        process = self._processes.get(stage)
        if process is not None and process.is_running:
            return
        if process is not None:
            # The old process is gone before its successor starts: two would not fit one device.
            await process.end()
            del self._processes[stage]
        self._processes[stage] = await WorkerProcess.start(
            [*worker_flags(self._config, stage), *self._more_flags],
            name=f"worker of {Rank(stage=stage)}",
        )


class InProcessFleet:
    """The one worker of executor `uniproc`, replaced when its thread has died."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._worker: WorkerApi | None = None
        self._is_lost = False

    @property
    def connected(self) -> Sequence[WorkerApi]:
        """The worker, if there is one."""
        return [] if self._worker is None else [self._worker]

    async def connect(self) -> Sequence[WorkerApi]:
        """The same worker while its thread lives."""
        if self._is_lost:
            await self.close()
        if self._worker is None:
            self._is_lost = False
            self._worker = in_process_worker(self._config)
            self._worker.on_lost(self._note_lost)
        return [self._worker]

    def discard(self, stage: int) -> None:
        """Do nothing: a thread cannot be ended from outside."""

    async def close(self) -> None:
        """Close the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    def _note_lost(self, error: ServiceError) -> None:
        self._is_lost = True
