"""A worker fleet of scripted workers, and a replica on it: rebuilds without processes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.errors import ServiceError
from common.worker_api import Authority, Peer, WorkerInfo
from coordinator.engine.replica import Replica
from tests.fakes.manual_clock import ManualClock
from tests.fakes.scripted_engine import scripted_folder
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.stage_handoff import StageHandoff


class FleetWorker(ScriptedWorker):
    """A worker that answers once it is let up, and joins its peers unless `peers_error` is set."""

    def __init__(self, *, handoff: StageHandoff, stage: int) -> None:
        super().__init__(handoff=handoff, address=f"scripted:{stage}", step_seconds=0.01)
        self.is_up = asyncio.Event()
        self.peers_error: ServiceError | None = None

    async def describe(self) -> WorkerInfo:
        """Wait first."""
        await self.is_up.wait()
        return await super().describe()

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Fail first."""
        if self.peers_error is not None:
            raise self.peers_error
        await super().connect_peers(authority, generation, peers)


class ScriptedFleet:
    """One worker a stage; those that were lost or discarded are replaced by fresh ones.

    Fresh workers answer at once, or after `hold` only when `release` is called.
    """

    def __init__(self, num_stages: int) -> None:
        self.discarded: list[int] = []
        self._is_holding = False
        self._handoff = StageHandoff()
        self.workers = [self._fresh(stage) for stage in range(num_stages)]

    def hold(self) -> None:
        """Let workers that are made from now on not answer."""
        self._is_holding = True

    def release(self) -> None:
        """Let all workers answer."""
        self._is_holding = False
        for worker in self.workers:
            worker.is_up.set()

    @property
    def connected(self) -> Sequence[ScriptedWorker]:
        """All workers."""
        return self.workers

    async def connect(self) -> Sequence[ScriptedWorker]:
        """Replace what was lost."""
        for stage, worker in enumerate(self.workers):
            if worker.is_lost:
                await worker.close()
                self.workers[stage] = self._fresh(stage)
        return self.workers

    def discard(self, stage: int) -> None:
        """Lose the worker."""
        self.discarded.append(stage)
        self.workers[stage].lose("discarded")

    async def close(self) -> None:
        """Stop every worker."""
        for worker in self.workers:
            await worker.close()

    def _fresh(self, stage: int) -> FleetWorker:
        worker = FleetWorker(handoff=self._handoff, stage=stage)
        if not self._is_holding:
            worker.is_up.set()
        return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedService:
    """A running replica on a scripted fleet; `run` is its task, is_serving follows its health."""

    replica: Replica
    fleet: ScriptedFleet
    clock: ManualClock
    run: "asyncio.Task[None]"
    serving_changes: list[bool]
    is_serving: asyncio.Event


@asynccontextmanager
async def scripted_service(
    *,
    num_stages: int = 2,
    schedule: ScheduleConfig | None = None,
    warm_up_error: ServiceError | None = None,
    fleet: ScriptedFleet | None = None,
) -> AsyncIterator[ScriptedService]:
    """Start a replica, wait until it serves, and end it; warm_up_error: stage 0 fails step 1."""
    config = CoordinatorConfig(
        model=ModelConfig(model="scripted"),
        cache=CacheConfig(block_size=4, num_blocks=256),
        schedule=schedule or ScheduleConfig(),
        cluster=ClusterConfig(pp=num_stages),
    )
    fleet = fleet or ScriptedFleet(num_stages)
    clock = ManualClock()
    changes: list[bool] = []
    is_serving = asyncio.Event()

    def note_serving(now: bool) -> None:  # noqa: FBT001 - a state, told by value
        changes.append(now)
        (is_serving.set if now else is_serving.clear)()

    replica = Replica(
        config,
        scripted_folder(num_layers=num_stages),
        fleet=fleet,
        clock=clock,
        on_serving_changed=note_serving,
    )
    try:
        await replica.start()
    except ServiceError:
        await replica.shutdown()
        raise
    if warm_up_error is not None:
        fleet.workers[0].fail_step(1, warm_up_error)
    run = asyncio.create_task(replica.run(), name="replica")
    try:
        await replica.loop.wait_until_serving()
        yield ScriptedService(
            replica=replica,
            fleet=fleet,
            clock=clock,
            run=run,
            serving_changes=changes,
            is_serving=is_serving,
        )
    finally:
        await replica.drain(0)
        await asyncio.gather(run, return_exceptions=True)
        await replica.shutdown()
