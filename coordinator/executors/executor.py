"""One step to all ranks: brings a group of workers up, fans steps out and gathers their replies.

Knows workers by `WorkerApi` alone, wherever they run, and does not own them. Does not know what a
step contains, and does not repair a group that lost a rank: that takes a new executor.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.config import CoordinatorConfig
from common.errors import Fenced, ServiceError, WorkerLost, WrongState
from common.model_folder import ModelFolder
from common.step import (
    ExecutePending,
    ExecuteResult,
    GrammarMask,
    ModelRunnerOutput,
    SchedulerOutput,
    StepTimings,
)
from common.worker_api import (
    Authority,
    BeginGeneration,
    KVCacheSpec,
    Layout,
    MemoryBudget,
    MemoryReport,
    Peer,
    Rank,
    WorkerApi,
)
from coordinator.executors.cache_size import CacheRoom, check_room, num_kv_cache_blocks
from coordinator.executors.deadlines import (
    DEFAULT_RULES,
    DeadlineRules,
    StepDeadlines,
    compute_seconds,
    context_of,
)
from coordinator.executors.members import Member, on_every_rank
from coordinator.executors.progress import ProgressListener, ignore_progress
from coordinator.executors.startup import LoadedGroup, LoadedRank, load_group
from coordinator.executors.step_in_flight import StepInFlight
from coordinator.executors.topology import WorkerTopology
from coordinator.kv.cache_groups import BlockNeeds

FIRST_GENERATION = 1

logger = logging.getLogger(__name__)


class StepObserver(Protocol):
    """Hears of every step; steps are known by their number."""

    def step_sent(self, step: int, deadlines: Mapping[Rank, float]) -> None:
        """The step went to all ranks, with seconds of compute for each."""
        ...

    def step_answered(self, step: int) -> None:
        """Every rank has answered the step."""
        ...


class NoObserver:
    """Hears nothing."""

    def step_sent(self, step: int, deadlines: Mapping[Rank, float]) -> None:
        """Do nothing."""

    def step_answered(self, step: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """What a generation takes over from the ones before it.

    authority None: this coordinator commands nobody yet. num_blocks: KV cache blocks, null block
    included, that the sequences were planned on. deadlines, by rank, have learnt from earlier steps;
    None: deadline_rules alone are known.
    """

    generation: int = FIRST_GENERATION
    authority: Authority | None = None
    num_blocks: int | None = None
    deadline_rules: DeadlineRules = DEFAULT_RULES
    deadlines: Mapping[Rank, StepDeadlines] | None = None


class Executor:
    """A replica's worker group in one generation.

    Made by `create`, then `determine_available_memory`, `initialize`; its workers outlive it.
    """

    def __init__(
        self,
        *,
        members: tuple[Member, ...],
        group: LoadedGroup,
        config: CoordinatorConfig,
        succession: Succession,
    ) -> None:
        self.authority = group.authority
        self.generation = succession.generation
        self.max_model_len = group.max_model_len
        self.schedule = group.schedule
        self.members = members
        self.table_windows = group.ranks[0].report.table_windows
        """Tokens that the layers of each block table see; 0: all."""
        self.deadlines = succession.deadlines or {
            member.rank: StepDeadlines(succession.deadline_rules) for member in members
        }
        self._num_blocks = group.num_blocks
        self._ranks = group.ranks
        self._config = config
        self._observer: StepObserver = NoObserver()
        self._causes: dict[Rank, str] = {}
        self._lost: ServiceError | None = None
        self._is_over = False
        self._lost_callbacks: list[Callable[[ServiceError], None]] = []
        for member in members:
            member.worker.on_lost(lambda error, member=member: self._note_lost(member, error))

    @classmethod
    async def create(
        cls,
        workers: Sequence[WorkerApi],
        config: CoordinatorConfig,
        folder: ModelFolder,
        *,
        succession: Succession | None = None,
        report: ProgressListener = ignore_progress,
    ) -> "Executor":
        """Claim the workers, in stage order, and let each load its layers unless it holds them.

        Whoever obtained the workers closes them. Errors name the rank.
        """
        succession = succession or Succession()
        members = tuple(
            Member(rank=Rank(stage=stage), worker=worker) for stage, worker in enumerate(workers)
        )
        group = await load_group(
            members,
            config,
            folder,
            authority=succession.authority,
            num_blocks=succession.num_blocks,
            report=report,
        )
        return cls(members=members, group=group, config=config, succession=succession)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.members)

    @property
    def is_over(self) -> bool:
        """Whether the generation has ended."""
        return self._is_over

    async def determine_available_memory(self) -> int:
        """The KV cache blocks, null block included, that every rank can hold.

        Ranks that hold a cache keep it, and the others adopt its size. Raises ConfigError with the
        numbers when there is too little memory for the model's length, or for the group's cache.
        """
        newcomers = self._newcomers()
        if not newcomers and self._num_blocks is not None:
            return self._num_blocks
        logger.info("measuring the memory of the largest step")
        rooms = await on_every_rank(newcomers, self._cache_room)
        if self._num_blocks is not None:
            check_room(rooms, self._num_blocks)
            return self._num_blocks
        needs = BlockNeeds(
            block_size=self._config.cache.block_size,
            windows=self.table_windows,
            most_in_flight=self.schedule.cohort_tokens,
        )
        num_blocks = num_kv_cache_blocks(
            rooms, self._config.cache, needs, max_model_len=self.max_model_len
        )
        asked = self._config.cache.num_blocks
        if asked is not None and asked > num_blocks:
            logger.warning(
                "memory allows %d KV cache blocks of the %d asked for", num_blocks, asked
            )
        logger.info("KV cache sized", extra={"num_blocks": num_blocks})
        return num_blocks

    async def initialize(self, num_blocks: int) -> None:
        """Allocate and warm up where that is missing, and join all ranks; steps may follow."""
        authority, generation = self.authority, self.generation
        newcomers = self._newcomers()
        await on_every_rank(
            newcomers, lambda m: m.worker.initialize_kv_cache(authority, num_blocks)
        )
        if newcomers:
            logger.info("warming up")
        await on_every_rank(newcomers, lambda m: m.worker.compile_or_warm_up(authority))
        # Every mailbox must be open before any rank may send into it.
        await on_every_rank(
            self.members, lambda m: m.worker.begin_generation(authority, self._begin(m.rank))
        )
        peers = tuple(
            Peer(rank=member.rank, tensor_endpoint=loaded.info.tensor_endpoint)
            for member, loaded in zip(self.members, self._ranks, strict=True)
        )
        await on_every_rank(
            self.members, lambda m: m.worker.connect_peers(authority, generation, peers)
        )

    def observe(self, observer: StepObserver) -> None:
        """Tell the observer of every step from now on."""
        self._observer = observer

    def execute_model(
        self, output: SchedulerOutput, *, on_settled: Callable[[], object]
    ) -> StepInFlight:
        """Send a step to every rank, without waiting; only the last stage samples.

        on_settled is called once, when all ranks have answered or the first one has failed.
        """
        is_sample_due = output.num_rows > 0 and not output.grammar_mask_follows
        last = self.members[-1]
        size = _step_size(output)
        deadlines = {rank: known.deadline(**size) for rank, known in self.deadlines.items()}
        step = StepInFlight(output, on_settled=on_settled)
        step.wait_for(
            self.members,
            [
                member.worker.submit_step(
                    output,
                    sample=is_sample_due and member is last,
                    deadline=deadlines[member.rank],
                )
                for member in self.members
            ],
        )
        self._observer.step_sent(output.step_id.step, deadlines)
        return step

    def send_mask(self, step: StepInFlight, mask: GrammarMask) -> None:
        """Let the last stage sample a step that waits for its grammar mask, without waiting."""
        last = self.members[-1]
        step.wait_for_sample(last, last.worker.submit_sample(step.output.step_id, mask))

    def sample_tokens(self, step: StepInFlight) -> ModelRunnerOutput:
        """What the last stage answered to a settled step.

        Raises the first error of any rank, naming the rank: the step is over for all.
        """
        assert step.is_settled, "the step is still on its way"
        if step.failure is not None:
            raise step.failure
        result = step.results[-1]
        if not isinstance(result, ModelRunnerOutput):
            raise self.members[-1].blame(_no_tokens(result))
        return result

    def note_answered(self, step: StepInFlight) -> None:
        """Learn how long such steps take and tell the observer; for after the next step was sent."""
        size = _step_size(step.output)
        for member, result in zip(self.members, step.results, strict=True):
            if not isinstance(result, ExecutePending):
                seconds = compute_seconds(result.timings)
                self.deadlines[member.rank].observe(**size, seconds=seconds)
        self._observer.step_answered(step.output.step_id.step)

    def timings(self, step: StepInFlight) -> dict[Rank, StepTimings]:
        """Where the time of a step went on each rank that says so, once all have answered."""
        return {
            member.rank: result.timings
            for member, result in zip(self.members, step.results, strict=True)
            if not isinstance(result, ExecutePending)
        }

    def state_digests(self, step: StepInFlight) -> dict[str, bytes | None]:
        """What each rank, by name, says of its books after a step that all have answered."""
        return {
            str(member): None if isinstance(result, ExecutePending) else result.state_digest
            for member, result in zip(self.members, step.results, strict=True)
        }

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Call back once, when the first rank is lost; at once when one is lost already."""
        if self._lost is not None:
            callback(self._lost)
        else:
            self._lost_callbacks.append(callback)

    @property
    def logits_processors(self) -> frozenset[str]:
        """Names of the custom logits processors of the rank that samples."""
        return frozenset(self._ranks[-1].info.logits_processors)

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
                num_loads=loaded.num_loads,
            )
            for member, loaded in zip(self.members, self._ranks, strict=True)
        )

    def give_up(self, rank: Rank, cause: str) -> None:
        """Take a rank that stalls the group for lost."""
        self._note_lost(self.members[rank.stage], WorkerLost(cause))

    def end(self) -> None:
        """Hear of no more losses: the generation is over, and what its workers do is others' concern."""
        self._is_over = True

    async def shutdown(self) -> None:
        """Release the workers from the generation; once it is over this does nothing."""
        if self._is_over:
            return
        self.end()
        present = [member for member in self.members if member.rank not in self._causes]
        await asyncio.gather(*(self._release(member) for member in present))

    def _newcomers(self) -> list[Member]:
        """Members without a KV cache, whose parameters are loaded."""
        return [member for member in self.members if not self._loaded(member).is_warm]

    def _loaded(self, member: Member) -> LoadedRank:
        return self._ranks[member.rank.stage]

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

    def _note_lost(self, member: Member, error: ServiceError) -> None:
        if self._is_over:
            return
        self._causes.setdefault(member.rank, str(error))
        # Only to be fenced is more than a loss: then this coordinator has to go.
        told = member.blame(error) if isinstance(error, Fenced) else member.lost(str(error))
        logger.error("worker lost", extra={"rank": str(member.rank), "cause": str(told)})
        if self._lost is None:
            self._lost = told
            for callback in self._lost_callbacks:
                callback(told)


def _no_tokens(result: ExecuteResult) -> ServiceError:
    return WrongState(f"the last stage answered {type(result).__name__} instead of its tokens")


def _step_size(output: SchedulerOutput) -> dict[str, int]:
    return {
        "num_tokens": output.total_num_scheduled_tokens,
        "context": context_of(output),
        "num_rows": output.num_rows,
    }
