"""Plan, execute, commit: keeps the pipeline full and hands every request its tokens.

The loop is the sole owner of the scheduler; everything here runs on one event loop, so submitting and
aborting need no lock. It wakes by events alone: a request, a leaving reader, an answered step.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import AlreadyExists, ServiceError, Unavailable
from common.requests import FinishReason, Request, TokenDelta
from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.engine.streams import TokenStream
from coordinator.executors.executor import Executor
from coordinator.scheduling.scheduler import Scheduler

IDLE_SECONDS_BEFORE_FLUSH = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRequest:
    """A request whose stream has not ended."""

    request_id: str
    stream: TokenStream


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SentStep:
    """A step in flight and the task that waits for its result."""

    output: SchedulerOutput
    result: "asyncio.Task[ModelRunnerOutput]"


class EngineLoop:
    """Runs one replica; `run` is its life, from the warm-up step to drain or failure."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        on_serving_changed: Callable[[bool], None] = lambda is_serving: None,
    ) -> None:
        """on_serving_changed hears every change of `is_serving`, from the event loop."""
        self._scheduler = scheduler
        self._executor = executor
        self._on_serving_changed = on_serving_changed
        self._refusal: Unavailable | None = Unavailable("the service is starting")
        self._open: dict[int, _OpenRequest] = {}
        self._handle_by_request: dict[str, int] = {}
        self._in_flight: deque[_SentStep] = deque()
        self._woken = asyncio.Event()
        self._is_started = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_draining = False
        self._is_stopping = False
        self.last_step = 0
        """Number of the last committed step."""

    @property
    def is_serving(self) -> bool:
        """True from the warm-up step's end until a drain or a failure."""
        return self._refusal is None

    @property
    def num_open(self) -> int:
        """Requests whose streams have not ended."""
        return len(self._open)

    @property
    def _is_oldest_answered(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0].result.done()

    async def wait_until_serving(self) -> None:
        """Wait for the warm-up step; raises the Unavailable that says why it did not pass."""
        await self._is_started.wait()
        if self._refusal is not None:
            raise self._refusal

    async def run(self) -> None:
        """Serve until drained or failed, then return; every open stream has ended by then.

        A failing worker ends the streams and is logged, not raised; a bug of ours ends them and is
        raised.
        """
        self._log_lowered_limits()
        self._scheduler.begin_generation(
            epoch=self._executor.authority.epoch, generation=self._executor.generation
        )
        self._executor.on_lost(self.fail)
        try:
            async with asyncio.TaskGroup() as steps:
                await self._serve(steps)
        except* ServiceError as group:
            self.fail(_first(group))
        except* Exception as group:
            self.fail(_first(group))
            raise
        finally:
            self.fail(Unavailable("the service has ended"))

    def submit(self, request: Request) -> TokenStream:
        """Queue a request and return the stream of its tokens.

        Raises Unavailable while the loop is not serving, AlreadyExists, InvalidRequest, Overloaded.
        """
        if self._refusal is not None:
            raise _copy(self._refusal)
        if request.request_id in self._handle_by_request:
            raise AlreadyExists(f"request {request.request_id!r} is running")
        handle = self._scheduler.add(request)
        stream = TokenStream(on_leave=lambda: self._drop(handle))
        self._open[handle] = _OpenRequest(request_id=request.request_id, stream=stream)
        self._handle_by_request[request.request_id] = handle
        self._is_empty.clear()
        self._woken.set()
        return stream

    def abort(self, request_id: str) -> None:
        """End a request with the finish reason ABORT; one that is not running is ignored."""
        handle = self._handle_by_request.get(request_id)
        if handle is not None:
            stream = self._drop(handle)
            stream.put(TokenDelta(finish_reason=FinishReason.ABORT))

    def fail(self, error: BaseException) -> None:
        """Stop: every open stream ends with this error, as Unavailable, and so does every later submit."""
        if self._is_stopping:
            return
        cause = _as_unavailable(error)
        logger.error("engine loop stopped", extra={"cause": str(cause), "step": self.last_step})
        self._stop(cause)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, give running ones this long, end the rest with Unavailable, and stop."""
        self._is_draining = True
        self._refuse(Unavailable("the service is shutting down"))
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            logger.warning("drain timeout passed", extra={"open_requests": len(self._open)})
        if not self._is_stopping:
            self._stop(Unavailable(f"the service shut down after a drain of {seconds:g} seconds"))

    async def _serve(self, steps: asyncio.TaskGroup) -> None:
        self._send(self._scheduler.plan_warm_up(), steps)
        while not self._is_stopping:
            deltas = self._commit_oldest()
            # Sent before the readers are woken: the workers compute while tokens become text.
            self._fill_pipeline(steps)
            self._deliver(deltas)
            await self._next_event(steps)
        for step in self._in_flight:
            step.result.cancel()

    def _fill_pipeline(self, steps: asyncio.TaskGroup) -> None:
        while (output := self._scheduler.schedule()) is not None:
            self._send(output, steps)

    def _send(self, output: SchedulerOutput, steps: asyncio.TaskGroup) -> None:
        step = self._executor.execute_model(output)
        result = steps.create_task(
            self._executor.sample_tokens(step), name=f"step {output.step_id.step}"
        )
        result.add_done_callback(lambda _: self._woken.set())
        self._in_flight.append(_SentStep(output=output, result=result))

    def _commit_oldest(self) -> list[tuple[int, TokenDelta]]:
        """Commit the oldest step in flight if it is answered; raises the error it failed with."""
        if not self._is_oldest_answered:
            return []
        step = self._in_flight.popleft()
        result = step.result.result()
        deltas = self._scheduler.update_from_output(step.output, result)
        self._fail_requests(result)
        self.last_step = step.output.step_id.step
        self._note_started()
        return deltas

    def _fail_requests(self, result: ModelRunnerOutput) -> None:
        for handle, message in result.request_errors:
            if handle in self._open:
                self._drop(handle).fail(ServiceError(message))

    def _deliver(self, deltas: list[tuple[int, TokenDelta]]) -> None:
        for handle, delta in deltas:
            is_last = delta.finish_reason is not None
            stream = self._forget(handle) if is_last else self._open[handle].stream
            stream.put(delta)

    async def _next_event(self, steps: asyncio.TaskGroup) -> None:
        """Wait to be woken; idle workers that hold ended requests are told after a while."""
        if self._is_oldest_answered:
            return
        is_owing = self._scheduler.has_undelivered_finishes and not self._in_flight
        try:
            async with asyncio.timeout(IDLE_SECONDS_BEFORE_FLUSH if is_owing else None):
                await self._woken.wait()
        except TimeoutError:
            self._send(self._scheduler.plan_step_without_tokens(), steps)
        self._woken.clear()

    def _note_started(self) -> None:
        if not self._is_started.is_set():
            self._is_started.set()
            if not self._is_draining:
                self._refusal = None
                self._on_serving_changed(self.is_serving)

    def _refuse(self, refusal: Unavailable) -> None:
        was_serving = self.is_serving
        self._refusal = refusal
        if was_serving:
            self._on_serving_changed(self.is_serving)

    def _stop(self, cause: Unavailable) -> None:
        self._is_stopping = True
        self._refuse(cause)
        for handle in list(self._open):
            self._drop(handle).fail(_copy(cause))
        self._is_started.set()
        self._woken.set()

    def _drop(self, handle: int) -> TokenStream:
        """Abort a request that has not finished; its blocks are free at once."""
        self._scheduler.abort(handle)
        self._woken.set()
        return self._forget(handle)

    def _forget(self, handle: int) -> TokenStream:
        request = self._open.pop(handle)
        del self._handle_by_request[request.request_id]
        if not self._open:
            self._is_empty.set()
        return request.stream

    def _log_lowered_limits(self) -> None:
        config = self._scheduler.config
        if config.sequence_limit < config.max_num_seqs:
            logger.warning(
                "max_num_seqs lowered to the token budget",
                extra={"max_num_seqs": config.max_num_seqs, "lowered_to": config.sequence_limit},
            )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain exception of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _as_unavailable(error: BaseException) -> Unavailable:
    """What clients are told: the service is gone for now, and why."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, ServiceError):
        return Unavailable(f"a step failed: {error}")
    return Unavailable(f"the engine loop broke: {error!r}")


def _copy(error: Unavailable) -> Unavailable:
    """The same error anew: one exception raised in many tasks would collect all their tracebacks."""
    return type(error)(*error.args)
