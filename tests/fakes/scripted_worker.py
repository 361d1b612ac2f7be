"""A `WorkerApi` that computes with the scripted model: real protocol, no tensors, no processes.

Stages run their own steps in order. A stage after the first starts step n when the one before has
finished it, the first when the tokens it names are sampled. A stage can be slow, fail, or be lost.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import cast

from common.errors import (
    NeedResync,
    ServiceError,
    StepRefused,
    WorkerLost,
    WrongOrder,
    WrongState,
)
from common.step import (
    ExecutePending,
    ExecuteResult,
    GrammarMask,
    ModelRunnerOutput,
    Phase,
    SchedulerOutput,
    StepId,
    StepKey,
)
from common.worker_api import (
    Authority,
    BeginGeneration,
    DevicePhase,
    ExecuteModel,
    GenerationReport,
    HeldStage,
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
from tests.fakes.scripted_command import ScriptedCommand
from tests.fakes.scripted_model import ModelLimits, SampledRow, ScriptedModel, runner_output
from tests.fakes.scripted_reports import (
    BYTES_PER_BLOCK,
    intermediate_tensors,
    kv_cache_spec,
    load_report,
    memory_report,
    model_limits,
    worker_info,
)
from tests.fakes.stage_handoff import StageHandoff


class ScriptedWorker:
    """One rank of a scripted pipeline.

    step_seconds: what an execute phase with tokens takes from its input on, the script's own work
    included. sleep: how it waits for that.
    poison_token_id: a request that holds this token fails alone instead of sampling. is_checking
    False: only the last stage looks into a step, so that a measurement is not of the script.
    """

    def __init__(
        self,
        *,
        handoff: StageHandoff | None = None,
        vocab_size: int = 256,
        step_seconds: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        poison_token_id: int | None = None,
        is_checking: bool = True,
        address: str = "scripted:0",
    ) -> None:
        self.address = address
        self.executed: list[SchedulerOutput] = []
        self._handoff = handoff or StageHandoff()
        self._vocab_size = vocab_size
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._poison_token_id = poison_token_id
        self._is_checking = is_checking
        self._incarnation = f"{id(self):x}"
        self._command = ScriptedCommand()
        self._rank = Rank()
        self._is_last = True
        self._held: HeldStage | None = None
        self._num_loads = 0
        self._model = ScriptedModel(ModelLimits())
        self._last_step = 0
        self._due: tuple[SchedulerOutput, list[SampledRow], bytes | None] | None = None
        self._failures: dict[int, ServiceError] = {}
        self._queue: asyncio.Queue[
            tuple[Callable[[], Awaitable[ExecuteResult]], Future[ExecuteResult]]
        ]
        self._runner: asyncio.Task[None] | None = None
        self._unanswered: set[Future[ExecuteResult]] = set()
        self._replies: dict[StepKey, Future[ExecuteResult]] = {}
        self._stuck_since: float | None = None
        self._is_forging = False
        self._lost_callbacks: list[Callable[[ServiceError], None]] = []
        self._lost: ServiceError | None = None

    @property
    def known_handles(self) -> frozenset[int]:
        """Handles of the requests this worker holds."""
        return self._model.known_handles

    @property
    def num_loads(self) -> int:
        """How often this worker has read parameters."""
        return self._num_loads

    @property
    def is_lost(self) -> bool:
        """Whether `lose` was called."""
        return self._lost is not None

    def get_stuck(self) -> None:
        """Say from now on that the device thread hangs in COMPUTE."""
        self._stuck_since = asyncio.get_running_loop().time()

    def forge_digests(self) -> None:
        """Answer wrong state digests from now on."""
        self._is_forging = True

    def fail_step(self, step: int, error: ServiceError) -> None:
        """Let the step with this number fail with error when its turn comes."""
        self._failures[step] = error

    def lose(self, cause: str, *, kind: type[ServiceError] = WorkerLost) -> None:
        """Be gone: every unanswered and later call fails with this error, the callbacks hear it."""
        self._lost = kind(cause)
        if self._runner is not None:
            self._runner.cancel()
        for future in list(self._unanswered):
            if not future.done():
                future.set_exception(self._lost)
        for callback in self._lost_callbacks:
            callback(self._lost)

    async def describe(self) -> WorkerInfo:
        """Describe a CPU worker of this protocol version."""
        self._check_alive()
        return worker_info(
            self._command,
            incarnation=self._incarnation,
            endpoint=self.address,
            held=self._held,
            num_loads=self._num_loads,
        )

    async def init_device(self, authority: Authority) -> str:
        """Become DEVICE_READY."""
        self._take(authority, "init_device")
        return "scripted"

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Take the sizes and the place; a layer counts PARAMETER_BYTES_PER_LAYER."""
        self._take(authority, "load_model")
        self._num_loads += 1
        self._held = HeldStage(request=request, report=load_report(request))
        return self._held.report

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Offer the whole budget."""
        self._take(authority, "determine_available_memory")
        return memory_report(budget)

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """One full-attention group with BYTES_PER_BLOCK bytes a block."""
        self._take(authority, "get_kv_cache_spec")
        return kv_cache_spec(self._loaded())

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Make an empty paged store."""
        self._take(authority, "initialize_kv_cache")
        self._model = ScriptedModel(
            model_limits(self._loaded(), vocab_size=self._vocab_size, num_blocks=num_blocks)
        )
        assert self._held is not None, "the state table puts load_model first"
        self._held = replace(self._held, num_blocks=num_blocks, kv_id=self._incarnation)
        return KVCacheReport(kv_id=self._incarnation, kv_cache_bytes=num_blocks * BYTES_PER_BLOCK)

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Become WARM."""
        self._take(authority, "compile_or_warm_up")
        return 0.0

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """Forget all requests and count steps from 1 again."""
        self._check_alive()
        self._command.begin(authority, request.generation)
        await self._stop_runner()
        self._rank = request.rank
        self._is_last = request.rank.stage == request.layout.num_stages - 1
        self._last_step = 0
        self._due = None
        self._model.forget_requests()
        self._replies.clear()
        self._queue = asyncio.Queue()
        self._runner = asyncio.create_task(self._run_queued(), name=f"scripted {request.rank}")
        return GenerationReport(
            incarnation=self._incarnation, kv_id=self._incarnation, weights_digest="scripted"
        )

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Become SERVING; the shared handoff is the connection."""
        self._take(authority, "connect_peers")

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Become WARM again."""
        self._take(authority, "end_generation")
        await self._stop_runner()
        self._replies.clear()

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase at once; inline tensors stand for the stage before."""
        is_fed = request.intermediate_tensors is not None
        return await self._execute(
            request.scheduler_output, is_fed=is_fed, is_inline=request.inline_reply
        )

    async def sample_tokens(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> ModelRunnerOutput:
        """Sample the step that was executed last; the script's tokens are what every mask allows."""
        self._check_alive()
        if self._due is None or self._due[0].step_id != step_id:
            raise WrongOrder(f"step {step_id.step} was not executed, so it cannot be sampled")
        output, rows, digest = self._due
        self._due = None
        self._handoff.sample(step_id)
        result = runner_output(
            output.step_id,
            rows,
            vocab_size=self._vocab_size,
            poison_token_id=self._poison_token_id,
        )
        return replace(result, state_digest=digest)

    def submit_step(
        self, output: SchedulerOutput, *, sample: bool, deadline: float | None = None
    ) -> "Future[ExecuteResult]":
        """Queue the step for the runner task; one submitted before is answered by the same result."""
        phase = Phase.SAMPLE if sample else Phase.EXECUTE
        return self._submit(
            StepKey(step_id=output.step_id, phase=phase), partial(self._run, output, sample)
        )

    def submit_sample(self, step_id: StepId, mask: GrammarMask) -> "Future[ModelRunnerOutput]":
        """Queue the sample phase likewise."""
        key = StepKey(step_id=step_id, phase=Phase.SAMPLE)
        future = self._submit(key, partial(self.sample_tokens, step_id, mask))
        return cast("Future[ModelRunnerOutput]", future)

    def _submit(
        self, key: StepKey, work: "Callable[[], Awaitable[ExecuteResult]]"
    ) -> "Future[ExecuteResult]":
        former = self._replies.get(key)
        if former is not None and not _is_refused(former):
            return former
        future: Future[ExecuteResult] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        if self._command.state != "SERVING":
            future.set_exception(
                WrongState(f"run_step is not legal in state {self._command.state}")
            )
            return future
        self._replies[key] = future
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        self._queue.put_nowait((work, future))
        return future

    async def watch_status(self, *, interval: float) -> AsyncIterator[WorkerActivity]:
        """Tell every interval seconds whether the worker is idle or stuck."""
        clock = asyncio.get_running_loop().time
        while True:
            self._check_alive()
            since = clock() if self._stuck_since is None else self._stuck_since
            yield WorkerActivity(
                state=self._command.state,
                epoch=self._command.authority.epoch,
                generation=self._command.generation,
                step=self._last_step,
                phase=DevicePhase.IDLE if self._stuck_since is None else DevicePhase.COMPUTE,
                seconds_in_phase=clock() - since,
                kv_id=self._incarnation,
                is_hung=self._stuck_since is not None,
            )
            await asyncio.sleep(interval)

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Remember whom to tell; tell at once when lost already."""
        self._lost_callbacks.append(callback)
        if self._lost is not None:
            callback(self._lost)

    async def close(self) -> None:
        """Stop the runner task."""
        await self._stop_runner()

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _take(self, authority: Authority, call: str) -> None:
        self._check_alive()
        self._command.take(authority, call)

    def _loaded(self) -> LoadModel:
        assert self._held is not None, "the state table puts load_model first"
        return self._held.request

    async def _stop_runner(self) -> None:
        if self._runner is None:
            return
        self._runner.cancel()
        await asyncio.gather(self._runner, return_exceptions=True)
        self._runner = None
        for future in list(self._unanswered):
            future.cancel()

    async def _run_queued(self) -> None:
        while True:
            work, future = await self._queue.get()
            try:
                result = await work()
            except ServiceError as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

    async def _run(self, output: SchedulerOutput, is_sampling: bool) -> ExecuteResult:  # noqa: FBT001 - bound once
        result = await self._execute(output, is_fed=False, is_inline=False)
        if is_sampling and isinstance(result, ExecutePending):
            return await self.sample_tokens(output.step_id)
        return result

    async def _execute(
        self, output: SchedulerOutput, *, is_fed: bool, is_inline: bool
    ) -> ExecuteResult:
        clock = asyncio.get_running_loop().time
        started = clock()
        self._check_step(output)
        failure = self._failures.pop(output.step_id.step, None)
        if failure is not None:
            raise failure
        rows = self._model.apply(output) if self._is_checking or self._is_last else []
        digest = self._state_digest() if output.want_state_digest else None
        self._last_step = output.step_id.step
        self.executed.append(output)
        key = StepKey(step_id=output.step_id, phase=Phase.EXECUTE)
        if not output.num_rows:
            return ModelRunnerOutput(key=key, state_digest=digest)
        if not is_fed and await self._handoff.wait_inputs(self._rank.stage, output):
            started = clock()
        await self._sleep(max(0.0, started + self._step_seconds - clock()))
        if not self._is_last:
            self._handoff.finish(self._rank.stage, output.step_id)
            tensors = intermediate_tensors(output, key, is_inline=is_inline)
            return replace(tensors, state_digest=digest)
        self._due = (output, rows, digest)
        return ExecutePending(key=key)

    def _state_digest(self) -> bytes:
        return b"forged" if self._is_forging else self._model.state_digest()

    def _check_step(self, output: SchedulerOutput) -> None:
        self._check_alive()
        self._command.check_step(output.step_id)
        if self._due is not None:
            raise WrongOrder(f"step {self._due[0].step_id.step} was executed but not sampled")
        if output.base_step != self._last_step or output.step_id.step <= self._last_step:
            raise NeedResync(f"step {output.base_step} is not the last applied {self._last_step}")


def _is_refused(reply: "Future[ExecuteResult]") -> bool:
    return reply.done() and not reply.cancelled() and isinstance(reply.exception(), StepRefused)
