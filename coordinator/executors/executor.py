"""One step to all ranks: brings a group of workers up, fans steps out and gathers their replies.

Knows workers by `WorkerApi` alone, wherever they run. Does not know what a step contains, and does
not repair a group that lost a rank.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.config import CoordinatorConfig
from common.errors import ServiceError, WorkerLost, WrongState
from common.model_folder import ModelFolder
from common.step import ExecuteResult, ModelRunnerOutput, SchedulerOutput
from common.worker_api import (
    BeginGeneration,
    KVCacheSpec,
    Layout,
    MemoryBudget,
    MemoryReport,
    Peer,
    Rank,
    WorkerApi,
)
from coordinator.executors.cache_size import CacheRoom, num_kv_cache_blocks
from coordinator.executors.members import Member, close_all, on_every_rank
from coordinator.executors.startup import LoadedGroup, load_group
from coordinator.executors.topology import WorkerTopology

FIRST_GENERATION = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class StepInFlight:
    """A step every rank was sent, and their replies to come, in rank order."""

    output: SchedulerOutput
    replies: tuple["Future[ExecuteResult]", ...]


class Executor:
    """A replica's worker group. Made by `create`, then `determine_available_memory`, `initialize`."""

    def __init__(
        self,
        *,
        members: tuple[Member, ...],
        group: LoadedGroup,
        config: CoordinatorConfig,
    ) -> None:
        self.authority = group.authority
        self.generation = FIRST_GENERATION
        self.max_model_len = group.max_model_len
        self._members = members
        self._ranks = group.ranks
        self._config = config
        self._causes: dict[Rank, str] = {}
        self._lost: WorkerLost | None = None
        self._is_shut_down = False
        self._lost_callbacks: list[Callable[[WorkerLost], None]] = []
        for member in members:
            member.worker.on_lost(lambda cause, member=member: self._note_lost(member, cause))

    @classmethod
    async def create(
        cls, workers: Sequence[WorkerApi], config: CoordinatorConfig, folder: ModelFolder
    ) -> "Executor":
        """Claim the workers, in stage order, and let each load its layers.

        Takes the workers over: they are closed when this raises. Errors name the rank.
        """
        members = tuple(
            Member(rank=Rank(stage=stage), worker=worker) for stage, worker in enumerate(workers)
        )
        try:
            group = await load_group(members, config, folder)
        except BaseException:
            await close_all(members)
            raise
        return cls(members=members, group=group, config=config)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self._members)

    async def determine_available_memory(self) -> int:
        """The KV cache blocks, null block included, that every rank can hold.

        Raises ConfigError with the numbers when they are too few for the model's length.
        """
        logger.info("measuring the memory of the largest step")
        rooms = await on_every_rank(self._members, self._cache_room)
        num_blocks = num_kv_cache_blocks(
            rooms, self._config.cache, max_model_len=self.max_model_len
        )
        asked = self._config.cache.num_blocks
        if asked is not None and asked > num_blocks:
            logger.warning(
                "memory allows %d KV cache blocks of the %d asked for", num_blocks, asked
            )
        logger.info("KV cache sized", extra={"num_blocks": num_blocks})
        return num_blocks

    async def initialize(self, num_blocks: int) -> None:
        """Allocate the KV cache, warm up and join all ranks to the generation; steps may follow."""
        authority, generation = self.authority, self.generation
        await on_every_rank(
            self._members, lambda m: m.worker.initialize_kv_cache(authority, num_blocks)
        )
        logger.info("warming up")
        await on_every_rank(self._members, lambda m: m.worker.compile_or_warm_up(authority))
        # Every mailbox must be open before any rank may send into it.
        await on_every_rank(
            self._members, lambda m: m.worker.begin_generation(authority, self._begin(m.rank))
        )
        peers = tuple(
            Peer(rank=member.rank, tensor_endpoint=loaded.info.tensor_endpoint)
            for member, loaded in zip(self._members, self._ranks, strict=True)
        )
        await on_every_rank(
            self._members, lambda m: m.worker.connect_peers(authority, generation, peers)
        )

    def execute_model(self, output: SchedulerOutput) -> StepInFlight:
        """Send a step to every rank, without waiting; only the last stage samples."""
        is_sample_due = output.num_rows > 0 and not output.grammar_mask_follows
        last = self._members[-1]
        replies = tuple(
            member.worker.submit_step(output, sample=is_sample_due and member is last)
            for member in self._members
        )
        for reply in replies:
            reply.add_done_callback(_retrieve)
        return StepInFlight(output, replies)

    async def sample_tokens(self, step: StepInFlight) -> ModelRunnerOutput:
        """Wait for every rank's reply and return the last stage's.

        Raises the first error of any rank at once, naming the rank: the step is over for all.
        """
        await asyncio.wait(step.replies, return_when=asyncio.FIRST_EXCEPTION)
        for member, reply in zip(self._members, step.replies, strict=True):
            if reply.done() and (error := reply.exception()) is not None:
                raise member.blame(error) if isinstance(error, ServiceError) else error
        result = step.replies[-1].result()
        if not isinstance(result, ModelRunnerOutput):
            raise self._members[-1].blame(_no_tokens(result))
        return result

    def on_lost(self, callback: Callable[[WorkerLost], None]) -> None:
        """Call back once, when the first rank is lost; at once when one is lost already."""
        if self._lost is not None:
            callback(self._lost)
        else:
            self._lost_callbacks.append(callback)

    def topology(self) -> tuple[WorkerTopology, ...]:
        """Every rank in stage order, lost ones with their cause."""
        return tuple(
            WorkerTopology(
                rank=member.rank,
                address=member.worker.address,
                device=loaded.device,
                incarnation=loaded.info.incarnation,
                first_layer=loaded.layers.start,
                end_layer=loaded.layers.stop,
                parameter_bytes=loaded.report.parameter_bytes,
                cause=self._causes.get(member.rank, ""),
            )
            for member, loaded in zip(self._members, self._ranks, strict=True)
        )

    async def shutdown(self) -> None:
        """Release the workers from the generation and let go of them; a second call does nothing."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        try:
            present = [member for member in self._members if member.rank not in self._causes]
            await asyncio.gather(*(self._release(member) for member in present))
        finally:
            await close_all(self._members)

    async def _release(self, member: Member) -> None:
        try:
            await member.worker.end_generation(self.authority, self.generation)
        except ServiceError as error:
            logger.info("%s was not released: %s", member, error)

    async def _cache_room(self, member: Member) -> CacheRoom:
        budget = self._memory_budget(member.rank)
        memory: MemoryReport = await member.worker.determine_available_memory(
            self.authority, budget
        )
        spec: KVCacheSpec = await member.worker.get_kv_cache_spec(self.authority)
        return CacheRoom(name=str(member), memory=memory, spec=spec)

    def _memory_budget(self, rank: Rank) -> MemoryBudget:
        cache = self._config.cache
        is_cpu = self._ranks[rank.stage].device.startswith("cpu")
        return MemoryBudget(
            kv_cache_bytes=cache.kv_cache_bytes if is_cpu else None,
            gpu_memory_utilization=cache.gpu_memory_utilization,
        )

    def _begin(self, rank: Rank) -> BeginGeneration:
        return BeginGeneration(
            generation=self.generation,
            rank=rank,
            layout=Layout(num_stages=self.num_stages),
            max_steps_in_flight=self._config.schedule.steps_in_flight(self.num_stages),
        )

    def _note_lost(self, member: Member, cause: str) -> None:
        if self._is_shut_down:
            return
        self._causes.setdefault(member.rank, cause)
        error = member.lost(cause)
        logger.error("worker lost", extra={"rank": str(member.rank), "cause": str(error)})
        if self._lost is None:
            self._lost = error
            for callback in self._lost_callbacks:
                callback(error)


def _no_tokens(result: ExecuteResult) -> ServiceError:
    return WrongState(f"the last stage answered {type(result).__name__} instead of its tokens")


def _retrieve(reply: "Future[ExecuteResult]") -> None:
    # Steps behind a failed one are never awaited; asyncio need not report their errors as well.
    if not reply.cancelled():
        reply.exception()
