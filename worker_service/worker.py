"""`WorkerApi` on a device thread: calls come from the event loop, work happens on the thread.

Runs inside the worker process behind the servicer, and inside the coordinator for `uniproc`.
"""

from asyncio import Event, Future, get_running_loop, wait_for
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from common.channels.channel import TensorChannels
from common.clock import Clock, SystemClock
from common.config import WorkerConfig
from common.errors import ServiceError, WorkerLost
from common.step import ExecuteResult, GrammarMask, ModelRunnerOutput, SchedulerOutput, StepId
from common.tracing import Tracer
from common.worker_api import (
    Authority,
    BeginGeneration,
    ExecuteModel,
    GenerationReport,
    KVCacheReport,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    Rank,
    WorkerActivity,
    WorkerInfo,
)
from worker_service.device import find_device
from worker_service.device_session import DeviceSession
from worker_service.device_thread import DeviceThread
from worker_service.lifecycle import Call, State
from worker_service.phase_board import PhaseBoard
from worker_service.reply_cache import ReplyCache
from worker_service.runner.model_runner import ModelRunner
from worker_service.sampling.custom_processors import CustomProcessors, load_custom_processors

Answer = TypeVar("Answer")


def _ignore_state(state: State) -> None:
    del state


class Worker:
    """One rank in this process; made, used and closed on one running event loop.

    `on_state` is called on that loop after each change of the lifecycle state. Raises ConfigError
    when the configured device is not there.
    """

    def __init__(
        self,
        config: WorkerConfig,
        channels: TensorChannels,
        *,
        clock: Clock | None = None,
        on_state: Callable[[State], None] = _ignore_state,
        make_runner: Callable[..., ModelRunner] = ModelRunner,
        tracer: Tracer | None = None,
        custom_processors: CustomProcessors | None = None,
    ) -> None:
        self.address = ""
        self._loop = get_running_loop()
        self._on_state = on_state
        self._lost_cause: str | None = None
        self._lost_callbacks: list[Callable[[ServiceError], None]] = []
        self._over_callbacks: list[Callable[[str], None]] = []
        self._watchers: set[Event] = set()
        self._replies = ReplyCache()
        self._session = DeviceSession(
            config,
            find_device(config.device),
            channels,
            clock=clock or SystemClock(),
            on_state=lambda state: self._call_on_loop(self._report_state, state),
            on_over=self._report_over,
            make_runner=make_runner,
            tracer=tracer,
            custom_processors=custom_processors or load_custom_processors(),
        )
        self._gate = self._session.gate
        self._thread = DeviceThread(
            on_death=lambda cause: self._call_on_loop(self._report_lost, cause)
        )

    @property
    def incarnation(self) -> str:
        """Random id of this worker."""
        return self._session.incarnation

    @property
    def epoch(self) -> int:
        """Epoch of the coordinator that commands the worker, 0 when none does."""
        return self._session.epoch

    @property
    def rank(self) -> Rank | None:
        """The place whose parameters are held, None before any are."""
        return self._session.rank

    def activity(self) -> WorkerActivity:
        """What the worker is doing now."""
        return self._session.activity()

    @property
    def board(self) -> PhaseBoard:
        """What the device thread is doing."""
        return self._session.board

    async def describe(self) -> WorkerInfo:
        """Say what the worker is, also while the device is busy."""
        return self._session.describe()

    async def watch_status(self, *, interval: float) -> AsyncGenerator[WorkerActivity]:
        """What the worker is doing: at every change of state, and at least every interval seconds."""
        changed = Event()
        self._watchers.add(changed)
        try:
            while self._lost_cause is None:
                changed.clear()
                yield self._session.activity()
                with suppress(TimeoutError):
                    await wait_for(changed.wait(), interval)
        finally:
            self._watchers.discard(changed)
        raise WorkerLost(self._lost_cause)

    async def init_device(self, authority: Authority) -> str:
        """Bind the device and return its name; once per worker."""
        return await self._thread.submit(partial(self._session.init_device, authority))

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read this stage's parameters, in place of those held; an earlier epoch's steps are over."""
        self._gate.check(authority, Call.LOAD_MODEL)
        self._gate.end_earlier(authority)
        return await self._thread.submit(partial(self._session.load_model, authority, request))

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        return await self._thread.submit(
            partial(self._session.determine_available_memory, authority, budget)
        )

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Say what the KV cache of this stage is made of."""
        return await self._thread.submit(partial(self._session.get_kv_cache_spec, authority))

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate num_blocks blocks, the null block 0 included."""
        return await self._thread.submit(
            partial(self._session.initialize_kv_cache, authority, num_blocks)
        )

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        return await self._thread.submit(partial(self._session.compile_or_warm_up, authority))

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """End the generation before, whatever it waits for, forget its requests and join this one."""
        self._gate.check(authority, Call.BEGIN_GENERATION)
        self._session.check_place(request)
        token = self._gate.begin_generation(authority, request.generation)
        self._replies.begin(num_steps=request.max_steps_in_flight + 1)
        return await self._thread.submit(
            partial(self._session.begin_generation, authority, request, token)
        )

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Open the tensor channels of the generation."""
        await self._thread.submit(
            partial(self._session.connect_peers, authority, generation, peers)
        )

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Release the worker from its group; what waits for a previous stage stops waiting."""
        self._gate.check(authority, Call.END_GENERATION)
        self._gate.end_generation(generation)
        await self._thread.submit(partial(self._session.end_generation, authority, generation))

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase, the plain form."""
        return await self.submit_execute(request, sample=False)

    async def sample_tokens(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> ModelRunnerOutput:
        """Run the sample phase, the plain form; last stage only."""
        return await self.submit_sample(step_id, mask)

    def submit_step(
        self, output: SchedulerOutput, *, sample: bool, deadline: float | None = None
    ) -> "Future[ExecuteResult]":
        """Queue a step behind those already submitted, without waiting."""
        request = ExecuteModel(scheduler_output=output, deadline=deadline)
        return self.submit_execute(request, sample=sample)

    def submit_execute(self, request: ExecuteModel, *, sample: bool) -> "Future[ExecuteResult]":
        """Queue an execute phase, and with `sample` the sample phase right behind it.

        One that is queued, runs or ran already is answered by its result.
        """
        step_id = request.scheduler_output.step_id
        work = self._session.execute_and_sample if sample else self._session.execute

        def run() -> "Future[ExecuteResult]":
            return self._queue(step_id, Call.EXECUTE_MODEL, partial(work, request))

        if sample:
            return self._replies.answer_both(step_id, run)
        return self._replies.answer_execute(step_id, run)

    def submit_sample(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> "Future[ModelRunnerOutput]":
        """Queue the sample phase of a step that was executed without it; as `submit_execute`."""
        work = partial(self._session.sample, step_id, mask)
        return self._replies.answer_sample(
            step_id, lambda: self._queue(step_id, Call.SAMPLE_TOKENS, work)
        )

    def is_current(self, step_id: StepId) -> bool:
        """Whether a step is of the newest generation, and that is not over."""
        return self._gate.is_current(step_id)

    def on_generation_over(self, callback: Callable[[str], None]) -> None:
        """Call back, on the event loop, with the reason whenever a generation is over."""
        self._over_callbacks.append(callback)

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Call back once, on the event loop, when the device thread dies; at once when it is dead."""
        if self._lost_cause is None:
            self._lost_callbacks.append(callback)
        else:
            callback(WorkerLost(self._lost_cause))

    async def close(self) -> None:
        """Cancel waits, let the running kernel finish, and let go of device and channels."""
        self._gate.close("the worker is closed")
        self._lost_cause = self._lost_cause or "the worker is closed"
        self._wake_watchers()
        finished = self._thread.submit(self._session.shut_down)
        self._thread.close()
        with suppress(WorkerLost):  # closed before, or its thread is dead: nothing is left to do
            await finished

    def _queue(self, step_id: StepId, call: Call, work: Callable[[], Answer]) -> "Future[Answer]":
        """Queue a phase of a step; one that may not run yields its error."""
        try:
            if self._lost_cause is not None:
                raise WorkerLost(self._lost_cause)
            self._gate.check_step(step_id, call)
        except ServiceError as error:
            refused: Future[Answer] = self._loop.create_future()
            refused.set_exception(error)
            return refused
        return self._thread.submit(work)

    def _report_state(self, state: State) -> None:
        self._on_state(state)
        self._wake_watchers()

    def _report_over(self, reason: str) -> None:
        self._replies.begin(num_steps=0)
        for callback in self._over_callbacks:
            callback(reason)

    def _report_lost(self, cause: str) -> None:
        self._lost_cause = cause
        self._wake_watchers()
        for callback in self._lost_callbacks:
            callback(WorkerLost(cause))

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    def _call_on_loop(self, callback: Callable[..., None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(callback, argument)
