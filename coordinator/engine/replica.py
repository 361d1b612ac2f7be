"""One replica through its generations: a worker group is brought up, serves, is lost, is rebuilt.

What a rebuilt group takes over: the coordinator's authority, the number of KV cache blocks, what was
learnt of the time a step takes, and, on workers that survived, the parameters.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.clock import Clock
from common.config import CoordinatorConfig
from common.errors import Fenced, ServiceError
from common.model_folder import ModelFolder
from common.worker_api import Rank
from coordinator.engine.cluster_status import ClusterStatus, LostGeneration
from coordinator.engine.loop import EngineLoop
from coordinator.engine.measures import Measures
from coordinator.executors.deadlines import DEFAULT_RULES, DeadlineRules
from coordinator.executors.executor import Executor, Succession
from coordinator.executors.fleet import WorkerFleet
from coordinator.executors.progress import Progress, ReplicaPhase, preparing
from coordinator.executors.release import release_survivors
from coordinator.executors.topology import WorkerTopology
from coordinator.recovery.monitor import GroupMonitor
from coordinator.scheduling.planner import WARM_UP_STEP
from coordinator.scheduling.scheduler import Scheduler

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
"""Seconds before a rebuild follows one that failed; each pause is twice the one before."""

NUM_REMEMBERED_LOSSES = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A worker group that may be sent steps; num_blocks counts the null block."""

    executor: Executor
    num_blocks: int


class Replica:
    """A worker fleet and the loop it serves: `start`, then `run`, then `drain`, then `shutdown`."""

    def __init__(
        self,
        config: CoordinatorConfig,
        folder: ModelFolder,
        *,
        fleet: WorkerFleet,
        clock: Clock,
        measures: Measures | None = None,
        on_serving_changed: Callable[[bool], None] = lambda is_serving: None,
        deadline_rules: DeadlineRules = DEFAULT_RULES,
    ) -> None:
        """Wire the parts; nobody is called yet. The fleet belongs to the replica from now on."""
        self._config = config
        self._folder = folder
        self._fleet = fleet
        self._clock = clock
        self._measures = measures or Measures()
        self._on_serving_changed = on_serving_changed
        self._progress = Progress(phase=ReplicaPhase.STARTING, detail="starting the workers")
        self._succession = Succession(deadline_rules=deadline_rules)
        self._group: _Group | None = None
        self._monitor: GroupMonitor | None = None
        self._scheduler: Scheduler | None = None
        self._loop: EngineLoop | None = None
        self._rebuild: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE
        self._lost_generations: deque[LostGeneration] = deque(maxlen=NUM_REMEMBERED_LOSSES)

    @property
    def loop(self) -> EngineLoop:
        """The loop that takes requests; there is one after `start`."""
        assert self._loop is not None, "the replica is started before it is used"
        return self._loop

    @property
    def max_sequence_len(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self._started_scheduler.max_sequence_len

    @property
    def logits_processors(self) -> frozenset[str]:
        """Names of the workers' custom logits processors."""
        assert self._group is not None, "the replica is started before it is used"
        return self._group.executor.logits_processors

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its blocks to another one."""
        return self._started_scheduler.counters.num_preemptions

    async def start(self) -> None:
        """Obtain the workers and bring them to the point where steps may follow.

        Raises the ServiceError of whatever failed.
        """
        self._group = group = await self._bring_up()
        # Later groups get the budgets of the first one, since the scheduler keeps them.
        self._config = replace(self._config, schedule=group.executor.schedule)
        self._scheduler = Scheduler(
            self._config.schedule,
            num_stages=group.executor.num_stages,
            num_blocks=group.num_blocks,
            block_size=self._config.cache.block_size,
            max_model_len=group.executor.max_model_len,
            eos_token_ids=self._folder.eos_token_ids,
            has_prefix_cache=self._config.cache.prefix_cache,
            most_drafts=self._config.speculation.most_drafts,
            table_windows=group.executor.table_windows,
        )
        self._loop = EngineLoop(
            self._scheduler,
            clock=self._clock,
            measures=self._measures,
            on_serving_changed=self._serving_changed,
        )

    async def run(self) -> None:
        """Serve one generation after the other until drained.

        Raises Fenced when a worker obeys a newer coordinator: then this one has to go. A group whose
        first warm-up step fails is not rebuilt: the loop stops with the cause.
        """
        while True:
            cause = await self._serve_generation()
            if cause is None or self.loop.is_stopped:
                return
            self._note_lost(cause)
            if isinstance(cause, Fenced):
                self.loop.stop(cause)
                raise cause
            if self.loop.last_step_age is None:
                self.loop.stop(cause)
                return
            if not await self._rebuild_group():
                return

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let running ones end within this time, and let `run` return."""
        await self.loop.drain(seconds)
        if self._rebuild is not None:
            self._rebuild.cancel()

    async def shutdown(self) -> None:
        """Release the workers and let go of them, however far the replica came."""
        try:
            await self._release()
        finally:
            await self._fleet.close()

    def status(self, model: str) -> ClusterStatus:
        """What an operator is told of this replica."""
        progress = self._current_progress()
        status = ClusterStatus(
            model=model,
            phase=progress.phase,
            detail=progress.detail,
            lost_generations=tuple(reversed(self._lost_generations)),
        )
        if self._group is None or self._scheduler is None or self._loop is None:
            return status
        return replace(
            status,
            is_serving=self._loop.is_serving,
            epoch=self._group.executor.authority.epoch,
            generation=self._group.executor.generation,
            step=self._loop.last_step,
            last_step_age=self._loop.last_step_age,
            workers=tuple(map(self._with_activity, self._group.executor.topology())),
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_blocks=self._group.num_blocks - 1,
            num_free_blocks=self._scheduler.num_free_blocks,
            num_invalid_steps=self._loop.num_invalid_steps,
            num_state_checks=self._loop.state_checks.num_checks,
            num_state_drifts=self._loop.state_checks.num_drifts,
            num_prompt_tokens=self._scheduler.counters.num_prompt_tokens,
            num_cached_tokens=self._scheduler.counters.num_cached_tokens,
            num_generated_tokens=self._scheduler.counters.num_generated_tokens,
            num_preemptions=self._scheduler.counters.num_preemptions,
            num_drafts=self._scheduler.counters.num_drafts,
            num_draft_tokens=self._scheduler.counters.num_draft_tokens,
            num_accepted_tokens=self._scheduler.counters.num_accepted_tokens,
            num_accepted_by_position=tuple(self._scheduler.counters.num_accepted_by_position),
            block_size=self._config.cache.block_size,
            max_num_seqs=self._scheduler.config.sequence_limit,
            num_waiting_tokens=self._scheduler.num_waiting_tokens,
        )

    async def _release(self) -> None:
        authority = self._succession.authority
        if self._group is not None and not self._group.executor.is_over:
            await self._group.executor.shutdown()
        elif authority is not None:
            await release_survivors(self._fleet.connected, authority)

    @property
    def _started_scheduler(self) -> Scheduler:
        assert self._scheduler is not None, "the replica is started before it is used"
        return self._scheduler

    async def _bring_up(self) -> _Group:
        succession = self._succession
        # A generation that some worker may have begun is never begun again.
        self._succession = replace(succession, generation=succession.generation + 1)
        executor = await Executor.create(
            await self._fleet.connect(),
            self._config,
            self._folder,
            succession=succession,
            report=self._note_progress,
        )
        # From here on workers may count on this coordinator, whatever becomes of the group.
        self._succession = replace(self._succession, authority=executor.authority)
        self._note_progress(preparing("sizing the KV cache and warming up"))
        num_blocks = await executor.determine_available_memory()
        await executor.initialize(num_blocks)
        self._note_progress(preparing("waiting for the first step to pass all stages"))
        self._succession = replace(
            self._succession, num_blocks=num_blocks, deadlines=executor.deadlines
        )
        return _Group(executor=executor, num_blocks=num_blocks)

    async def _serve_generation(self) -> ServiceError | None:
        """Watch and serve the group; what ended it, None when it was drained."""
        assert self._group is not None, "a group is brought up before it serves"
        executor = self._group.executor
        self._monitor = GroupMonitor(executor.members, self._clock, on_blamed=self._give_up)
        executor.observe(self._monitor)
        watching = asyncio.create_task(self._monitor.run(), name="group monitor")
        try:
            await self.loop.run(executor)
        except ServiceError as error:
            executor.end()
            return error
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._monitor = None
        return None

    def _give_up(self, rank: Rank, cause: str) -> None:
        assert self._group is not None, "only the ranks of a group are watched"
        # In this order: the end of a discarded process is not the cause.
        self._group.executor.give_up(rank, cause)
        self._fleet.discard(rank.stage)

    async def _rebuild_group(self) -> bool:
        """Try until there is a new group; False when the replica is drained meanwhile."""
        self._rebuild = asyncio.create_task(self._try_to_rebuild(), name="rebuild")
        try:
            await self._rebuild
        except asyncio.CancelledError:
            if not self.loop.is_stopped:
                raise
            return False
        except Fenced as error:
            self.loop.stop(error)
            raise
        finally:
            self._rebuild = None
        return True

    async def _try_to_rebuild(self) -> None:
        if self.loop.last_step < WARM_UP_STEP:
            # A group that could not run its first step will rarely do so when it is built at once.
            await self._wait_a_while()
        else:
            self._pause = FIRST_PAUSE
        while True:
            try:
                self._group = await self._bring_up()
            except Fenced:
                raise
            except ServiceError as error:
                logger.warning(
                    "rebuild failed", extra={"cause": str(error), "again_in": self._pause}
                )
                self._note_progress(
                    Progress(phase=ReplicaPhase.WAITING, detail=f"trying again after: {error}")
                )
                await self._wait_a_while()
            else:
                self._measures.num_rebuilds += 1
                for deadlines in self._group.executor.deadlines.values():
                    deadlines.note_rebuild()
                return

    def _serving_changed(self, is_serving: bool) -> None:  # noqa: FBT001 - a state, told by value
        if is_serving:
            # What is told between the moment it no longer serves and the one its cause is noted.
            self._progress = Progress(phase=ReplicaPhase.WAITING, detail="the worker group is lost")
        self._on_serving_changed(is_serving)

    async def _wait_a_while(self) -> None:
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        await asyncio.sleep(pause)

    def _note_lost(self, cause: ServiceError) -> None:
        assert self._group is not None, "only a group can be lost"
        generation = self._group.executor.generation
        self._measures.num_generations_lost += 1
        logger.error("generation lost", extra={"generation": generation, "cause": str(cause)})
        self._lost_generations.append(
            LostGeneration(
                generation=generation, cause=str(cause), ended_at=self._clock.unix_time()
            )
        )
        self._note_progress(Progress(phase=ReplicaPhase.WAITING, detail=str(cause)))

    def _note_progress(self, progress: Progress) -> None:
        self._progress = progress
        logger.info("replica %s", progress.phase.value, extra={"detail": progress.detail})

    def _current_progress(self) -> Progress:
        if self._loop is not None and self._loop.is_draining:
            num_open = self._loop.num_open
            detail = f"{num_open} open request{'' if num_open == 1 else 's'}"
            return Progress(phase=ReplicaPhase.DRAINING, detail=detail)
        if self._loop is not None and self._loop.is_serving:
            return Progress(phase=ReplicaPhase.SERVING, detail="")
        return self._progress

    def _with_activity(self, worker: WorkerTopology) -> WorkerTopology:
        activity = None if self._monitor is None else self._monitor.activity(worker.rank)
        if activity is None:
            return worker
        return replace(
            worker,
            phase=activity.phase.value,
            seconds_in_phase=activity.seconds_in_phase,
            num_prefill_tokens=activity.num_prefill_tokens,
        )
