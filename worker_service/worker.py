"""`WorkerApi` on a device thread: calls come from the event loop, work happens on the thread.

Runs inside the worker process behind the servicer, and inside the coordinator for `uniproc`.
"""

from asyncio import Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from common.channels.channel import TensorChannels
from common.clock import Clock, SystemClock
from common.config import WorkerConfig
from common.errors import WorkerLost
from common.step import ExecuteResult, ModelRunnerOutput, SchedulerOutput, StepId
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
    WorkerInfo,
)
from worker_service.device import find_device
from worker_service.device_session import DeviceSession
from worker_service.device_thread import DeviceThread
from worker_service.lifecycle import State
from worker_service.runner.model_runner import ModelRunner


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
    ) -> None:
        self.address = ""
        self._loop = get_running_loop()
        self._lost_cause: str | None = None
        self._lost_callbacks: list[Callable[[str], None]] = []
        self._session = DeviceSession(
            config,
            find_device(config.device),
            channels,
            clock=clock or SystemClock(),
            on_state=lambda state: self._call_on_loop(on_state, state),
            make_runner=make_runner,
        )
        self._thread = DeviceThread(
            on_death=lambda cause: self._call_on_loop(self._report_lost, cause)
        )

    @property
    def incarnation(self) -> str:
        """Random id of this worker."""
        return self._session.incarnation

    async def describe(self) -> WorkerInfo:
        """Say what the worker is, also while the device is busy."""
        return self._session.describe()

    async def init_device(self, authority: Authority) -> str:
        """Bind the device and return its name; once per worker."""
        return await self._thread.submit(partial(self._session.init_device, authority))

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read this stage's parameters."""
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
        """Forget all request state and join a generation."""
        return await self._thread.submit(
            partial(self._session.begin_generation, authority, request)
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
        self._session.release_waits(authority, generation)
        await self._thread.submit(partial(self._session.end_generation, authority, generation))

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase, the plain form."""
        return await self.submit_execute(request, sample=False)

    async def sample_tokens(self, step_id: StepId) -> ModelRunnerOutput:
        """Run the sample phase, the plain form; last stage only."""
        return await self.submit_sample(step_id)

    def submit_step(self, output: SchedulerOutput, *, sample: bool) -> "Future[ExecuteResult]":
        """Queue a step behind those already submitted, without waiting."""
        return self.submit_execute(ExecuteModel(scheduler_output=output), sample=sample)

    def submit_execute(self, request: ExecuteModel, *, sample: bool) -> "Future[ExecuteResult]":
        """Queue an execute phase, and with `sample` the sample phase right behind it."""
        run = self._session.execute_and_sample if sample else self._session.execute
        return self._thread.submit(partial(run, request))

    def submit_sample(self, step_id: StepId) -> "Future[ModelRunnerOutput]":
        """Queue the sample phase of a step that was executed without it."""
        return self._thread.submit(partial(self._session.sample, step_id))

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call back once, on the event loop, when the device thread dies; at once when it is dead."""
        if self._lost_cause is None:
            self._lost_callbacks.append(callback)
        else:
            callback(self._lost_cause)

    async def close(self) -> None:
        """Cancel waits, let the running kernel finish, and let go of device and channels."""
        self._session.cancel_waits("the worker is closed")
        finished = self._thread.submit(self._session.shut_down)
        self._thread.close()
        with suppress(WorkerLost):  # closed before, or its thread is dead: nothing is left to do
            await finished

    def _report_lost(self, cause: str) -> None:
        self._lost_cause = cause
        for callback in self._lost_callbacks:
            callback(cause)

    def _call_on_loop(self, callback: Callable[..., None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(callback, argument)
