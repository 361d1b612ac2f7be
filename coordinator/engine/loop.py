"""Plan, execute, commit: keeps the pipeline full and hands every request its tokens.

The loop is the sole owner of the scheduler; everything here runs on one event loop, so submitting and
aborting need no lock. It wakes by events alone: a request, a leaving reader, an answered step. It
outlives the worker group: `run` serves one generation, and its end is told to who calls it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.clock import Clock, SystemClock
from common.errors import AlreadyExists, InvalidStep, ServiceError, Unavailable
from common.requests import FinishReason, Request, TokenDelta
from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.engine.measures import Measures
from coordinator.engine.request_times import RequestTimes
from coordinator.engine.state_checks import StateChecks
from coordinator.engine.streams import TokenStream
from coordinator.engine.unavailable import anew, as_unavailable
from coordinator.executors.executor import Executor
from coordinator.executors.step_in_flight import StepInFlight
from coordinator.scheduling.planner import WARM_UP_STEP
from coordinator.scheduling.scheduler import Scheduler
from coordinator.scheduling.sequence import TokenMatcher

IDLE_SECONDS_BEFORE_FLUSH = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRequest:
    """A request whose stream has not ended."""

    request_id: str
    stream: TokenStream
    times: RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SentStep:
    """A step in flight; state_digest: what every rank must answer, None when it is not asked.

    sent_at: in seconds of the monotonic clock.
    """

    step: StepInFlight
    sent_at: float
    state_digest: bytes | None

    @property
    def output(self) -> SchedulerOutput:
        """What was sent."""
        return self.step.output


class EngineLoop:
    """Runs one replica through its generations: `run` serves one, until drained or until it ends."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock | None = None,
        measures: Measures | None = None,
        on_serving_changed: Callable[[bool], None] = lambda is_serving: None,
    ) -> None:
        """on_serving_changed hears every change of `is_serving`, from the event loop.

        measures is written to.
        """
        self._scheduler = scheduler
        self._clock = clock or SystemClock()
        self._measures = measures or Measures()
        self._on_serving_changed = on_serving_changed
        self._executor: Executor | None = None
        self._refusal: Unavailable | None = Unavailable("the service is starting")
        self._open: dict[int, _OpenRequest] = {}
        self._handle_by_request: dict[str, int] = {}
        self._in_flight: deque[_SentStep] = deque()
        self._loss: ServiceError | None = None
        self._woken = asyncio.Event()
        self._is_started = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._committed_at: float | None = None
        self.is_draining = False
        """True from the first call of `drain` on."""
        self.is_stopped = False
        """True once no request is served any more, for ever."""
        self.last_step = 0
        """Number of the last committed step of the generation."""
        self.num_invalid_steps = 0
        """Steps that workers refused as invalid: bugs of ours."""
        self.state_checks = StateChecks()
        self._log_lowered_limits()

    @property
    def is_serving(self) -> bool:
        """True from a generation's warm-up step until it ends, a drain, or a failure."""
        return self._refusal is None

    @property
    def num_open(self) -> int:
        """Requests whose streams have not ended."""
        return len(self._open)

    @property
    def last_step_age(self) -> float | None:
        """Seconds since a step was committed, of whatever generation; None before the first."""
        return None if self._committed_at is None else self._clock.monotonic() - self._committed_at

    @property
    def _is_oldest_answered(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0].step.is_settled

    async def wait_until_serving(self) -> None:
        """Wait for the first warm-up step; raises the Unavailable that says why it did not pass."""
        await self._is_started.wait()
        if self._refusal is not None:
            raise self._refusal

    async def run(self, executor: Executor) -> None:
        """Serve one generation until drained; every request of it has ended when this returns.

        Raises the ServiceError that ended the generation; requests that were open then ended with it
        as Unavailable, and new ones are refused until the next call. A bug of ours stops the loop
        and is raised.
        """
        self._begin(executor)
        try:
            cause = await self._serve_until_lost()
        except BaseException as error:
            self.stop(error)
            raise
        if cause is not None:
            raise cause

    def submit(
        self,
        request: Request,
        times: RequestTimes | None = None,
        matcher: TokenMatcher | None = None,
    ) -> TokenStream:
        """Queue a request and return the stream of its tokens; matcher: the grammar of its output.

        Its moments are noted in times. Raises Unavailable while the loop is not serving, AlreadyExists,
        InvalidRequest, Overloaded.
        """
        if self._refusal is not None:
            raise anew(self._refusal)
        if request.request_id in self._handle_by_request:
            raise AlreadyExists(f"request {request.request_id!r} is running")
        leader = self._handle_by_request.get(request.leader_id or "")
        handle = self._scheduler.add(request, leader=leader, matcher=matcher)
        stream = TokenStream(on_leave=lambda: self._drop(handle))
        now = self._clock.monotonic()
        times = times or RequestTimes(arrived=now)
        times.queued = now
        self._open[handle] = _OpenRequest(request_id=request.request_id, stream=stream, times=times)
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

    async def reset_prefix_cache(self, seconds: float) -> bool:
        """Empty the prefix cache once no request is open; False when one is for so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self._open:
                    await self._is_empty.wait()
        except TimeoutError:
            return False
        self._scheduler.forget_prefixes()
        return True

    def stop(self, error: BaseException) -> None:
        """Serve no more: every open stream ends with this error, as Unavailable, and so does every later submit."""
        if self.is_stopped:
            return
        self.is_stopped = True
        cause = as_unavailable(error)
        logger.info("engine loop stopped", extra={"cause": str(cause), "step": self.last_step})
        self._end_requests(cause)
        self._is_started.set()
        self._woken.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, give running ones this long, end the rest with Unavailable, and stop."""
        self.is_draining = True
        self._refuse(Unavailable("the service is shutting down"))
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            logger.warning("drain timeout passed", extra={"open_requests": len(self._open)})
        self.stop(Unavailable(f"the service shut down after a drain of {seconds:g} seconds"))

    def _begin(self, executor: Executor) -> None:
        self._executor = executor
        self._loss = None
        self.last_step = 0
        self._measures.steps.note_generation()
        self._scheduler.begin_generation(
            epoch=executor.authority.epoch, generation=executor.generation
        )
        executor.on_lost(self._note_lost)

    def _note_lost(self, error: ServiceError) -> None:
        self._loss = self._loss or error
        self._woken.set()

    async def _serve_until_lost(self) -> ServiceError | None:
        """What ended the generation, None when the loop was stopped; nothing is in flight then."""
        try:
            await self._serve()
        except ServiceError as error:
            self._loss = error
        self._in_flight.clear()
        if self._loss is not None and not self.is_stopped:
            cause = as_unavailable(self._loss)
            self._end_requests(cause)
            self._refuse(type(cause)(f"{cause}; the worker group is being rebuilt"))
        self._scheduler.end_generation()
        return self._loss

    async def _serve(self) -> None:
        self._send(self._scheduler.plan_warm_up())
        while not self.is_stopped and self._loss is None:
            self._check_answers()
            answered = self._in_flight.popleft() if self._is_oldest_answered else None
            deltas = [] if answered is None else self._commit(answered)
            # Sent before all else: the workers compute while steps are judged and tokens become text.
            self._fill_pipeline()
            if answered is not None:
                self._judge(answered)
            self._deliver(deltas)
            await self._next_event()
        if not self.is_stopped:
            self._commit_answered()

    def _fill_pipeline(self) -> None:
        self._send_mask()
        while (output := self._scheduler.schedule()) is not None:
            self._send(output)
            self._send_mask()

    def _send_mask(self) -> None:
        """Let the step that waits for its grammar mask sample, if the mask can be made."""
        due = self._scheduler.take_grammar_mask()
        if due is None or self._executor is None:
            return
        output, mask = due
        (step,) = (sent.step for sent in self._in_flight if sent.output is output)
        self._executor.send_mask(step, mask)

    def _send(self, output: SchedulerOutput) -> None:
        executor = self._executor
        assert executor is not None, "steps are sent while a generation runs"
        digest = self._scheduler.state_digest() if output.want_state_digest else None
        step = executor.execute_model(output, on_settled=self._woken.set)
        sent_at = self._clock.monotonic()
        self._in_flight.append(_SentStep(step=step, sent_at=sent_at, state_digest=digest))
        for new in output.new_requests:
            # The warm-up step's request is nobody's, and a preempted one was scheduled before.
            if new.handle in self._open and self._open[new.handle].times.scheduled is None:
                self._open[new.handle].times.scheduled = sent_at

    def _check_answers(self) -> None:
        """Raise the error of the oldest step that failed; what is older is not waited for."""
        for sent in self._in_flight:
            failure = sent.step.failure
            if failure is None:
                continue
            self._commit_answered()
            if isinstance(failure, InvalidStep):
                self._fail_invalid(sent.output, failure)
            raise failure

    def _commit_answered(self) -> None:
        """Deliver what the workers answered before the generation was lost: it stays right."""
        while self._is_oldest_answered and self._in_flight[0].step.failure is None:
            self._deliver(self._commit(self._in_flight.popleft()))

    def _commit(self, sent: _SentStep) -> list[tuple[int, TokenDelta]]:
        assert self._executor is not None, "steps are committed while a generation runs"
        result = self._executor.sample_tokens(sent.step)
        deltas = self._scheduler.update_from_output(sent.output, result)
        self._fail_requests(result)
        self.last_step = sent.output.step_id.step
        self._committed_at = self._clock.monotonic()
        self._note_started()
        return deltas

    def _judge(self, sent: _SentStep) -> None:
        """Learn from a committed step how long such steps take, and compare the ranks' books."""
        assert self._executor is not None, "steps are committed while a generation runs"
        assert self._committed_at is not None, "the step was committed"
        self._executor.note_answered(sent.step)
        self._measures.steps.note_answered(
            self._executor.timings(sent.step),
            num_tokens=sent.output.total_num_scheduled_tokens,
            seconds=self._committed_at - sent.sent_at,
            is_last=not self._in_flight,
        )
        if sent.state_digest is not None:
            digests = self._executor.state_digests(sent.step)
            self.state_checks.compare(sent.state_digest, digests, step=sent.output.step_id.step)

    def _fail_requests(self, result: ModelRunnerOutput) -> None:
        for handle, message in (*result.request_errors, *self._scheduler.failures):
            if handle in self._open:
                self._drop(handle).fail(ServiceError(message))
        self._scheduler.failures.clear()

    def _fail_invalid(self, output: SchedulerOutput, error: InvalidStep) -> None:
        """End the requests of a step that must never be sent again: one of them is the reason."""
        self.num_invalid_steps += 1
        logger.error("invalid step", extra={"step": output.step_id.step, "cause": str(error)})
        for handle in output.handles:
            if handle in self._open:
                self._drop(handle).fail(
                    ServiceError(f"a step of this request was invalid: {error}")
                )

    def _deliver(self, deltas: list[tuple[int, TokenDelta]]) -> None:
        times = [self._open[handle].times for handle, _ in deltas]
        self._measures.requests.note_tokens(times, now=self._committed_at or 0.0)
        for handle, delta in deltas:
            is_last = delta.finish_reason is not None
            stream = self._forget(handle) if is_last else self._open[handle].stream
            stream.put(delta)

    async def _next_event(self) -> None:
        """Wait to be woken; idle workers that hold ended requests are told after a while."""
        if self._is_oldest_answered:
            return
        if self._scheduler.has_undelivered_finishes and not self._in_flight:
            await self._wait_or_flush()
        else:
            await self._woken.wait()
        self._woken.clear()

    async def _wait_or_flush(self) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS_BEFORE_FLUSH):
                await self._woken.wait()
        except TimeoutError:
            self._send(self._scheduler.plan_step_without_tokens())

    def _note_started(self) -> None:
        """The first committed step is the warm-up: the group serves."""
        if self.last_step != WARM_UP_STEP:
            return
        if not self.is_draining:
            self._refusal = None
            self._on_serving_changed(self.is_serving)
        self._is_started.set()

    def _refuse(self, refusal: Unavailable) -> None:
        was_serving = self.is_serving
        self._refusal = refusal
        if was_serving:
            self._on_serving_changed(self.is_serving)

    def _end_requests(self, cause: Unavailable) -> None:
        self._refuse(cause)
        for handle in list(self._open):
            self._drop(handle).fail(anew(cause))

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
