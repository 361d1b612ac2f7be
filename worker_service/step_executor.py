"""One step on one rank: guard, validate, run, send on or answer, and say where the time went.

Runs on the device thread. A refusal changes nothing; a failure ends the generation on this rank.
Knows neither RPCs nor how a forward pass is made.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from common.clock import Clock
from common.errors import Cancelled, InvalidStep, StepFailed, StepRefused
from common.logs import get_logger
from common.step import (
    ExecutePending,
    ExecuteResult,
    GrammarMask,
    IntermediateTensors,
    ModelRunnerOutput,
    Phase,
    SchedulerOutput,
    StepId,
    StepKey,
    StepTimings,
)
from common.worker_api import ExecuteModel
from worker_service.phase_board import PhaseBoard
from worker_service.request_spans import RequestSpans
from worker_service.runner.model_runner import ModelRunner
from worker_service.runner.stage_tensors import to_wire
from worker_service.stage_links import StageLinks, TimedInputs
from worker_service.step_guard import StepGuard

logger = get_logger(__name__)


class StepExecutor:
    """Runs the steps of one generation in the order they are given."""

    def __init__(
        self,
        runner: ModelRunner,
        guard: StepGuard,
        links: StageLinks,
        *,
        clock: Clock,
        board: PhaseBoard,
        spans: RequestSpans | None = None,
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._links = links
        self._clock = clock
        self._board = board
        self._spans = spans or RequestSpans()
        self._output: SchedulerOutput | None = None
        self._deadline: float | None = None
        self._forward_timings = StepTimings()

    def execute(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase.

        Raises a StepRefused or TensorError when the step cannot run, and then nothing has changed;
        StepFailed, naming step and cause, when it failed while it ran.
        """
        output = request.scheduler_output
        key = StepKey(step_id=output.step_id, phase=Phase.EXECUTE)
        self._guard.check_execute(output)
        _check_inline(request)
        self._runner.validate(output)
        inputs = self._links.inputs(key, request.intermediate_tensors)
        self._deadline = request.deadline
        self._output = output
        self._spans.note_step(output)
        with self._running(key):
            result = self._run_forward(output, inputs)
            self._guard.executed(output.step_id, is_sample_due=result is None)
            self._board.num_prefill_tokens += output.num_prefill_tokens
            if output.num_rows:
                self._board.note_graph(self._runner.last_stats)
            return self._answer(key, result, request)

    def sample(self, step_id: StepId, mask: GrammarMask | None = None) -> ModelRunnerOutput:
        """Run the sample phase that is due; raises like `execute`."""
        self._guard.check_sample(step_id)
        self._runner.validate_mask(step_id, mask)
        key = StepKey(step_id=step_id, phase=Phase.SAMPLE)
        with self._running(key):
            started_ns = self._clock.monotonic_ns()
            sampled = self._runner.sample_tokens(step_id, mask)
            self._guard.sampled()
            timings = StepTimings(
                compute_start_ns=started_ns, compute_end_ns=self._clock.monotonic_ns()
            )
            self._links.feed_back(step_id, self._runner.last_sampled)
            self._board.step_times.note_sample(timings)
            if mask is not None:
                # The one answer with timings: both phases, without the wait for the mask between.
                forward = self._forward_timings
                seconds = forward.compute_end_ns - forward.compute_start_ns
                timings = replace(timings, compute_start_ns=started_ns - seconds)
            return replace(sampled, timings=timings, cudagraph_stats=self._runner.last_stats)

    def execute_and_sample(self, request: ExecuteModel) -> ExecuteResult:
        """Run both phases where there are two; the timings then cover both."""
        executed = self.execute(request)
        if not isinstance(executed, ExecutePending):
            return executed
        sampled = self.sample(executed.key.step_id)
        timings = replace(self._forward_timings, compute_end_ns=sampled.timings.compute_end_ns)
        return replace(sampled, timings=timings)

    def _run_forward(
        self, output: SchedulerOutput, inputs: TimedInputs
    ) -> dict[str, Tensor] | ModelRunnerOutput | None:
        started_ns = self._clock.monotonic_ns()
        result = self._runner.execute_model(output, inputs)
        # COMPUTE starts when the input is there: what comes before is a few host arrays.
        self._forward_timings = StepTimings(
            compute_start_ns=inputs.received_ns or started_ns,
            compute_end_ns=self._clock.monotonic_ns(),
            wait_input_ns=inputs.wait_ns or 0,
        )
        self._board.step_times.note_execute(
            self._forward_timings, has_waited=inputs.wait_ns is not None
        )
        return result

    def _answer(
        self,
        key: StepKey,
        result: dict[str, Tensor] | ModelRunnerOutput | None,
        request: ExecuteModel,
    ) -> ExecuteResult:
        if result is None:
            return ExecutePending(key=key)
        if isinstance(result, ModelRunnerOutput):
            return replace(result, timings=self._forward_timings)
        # Copies from a GPU wait for the forward pass, so COMPUTE ends after them.
        tensors = to_wire(result)
        timings = replace(self._forward_timings, compute_end_ns=self._clock.monotonic_ns())
        if not request.inline_reply:
            self._links.send(key, tensors)
        digests = self._runner.digests(wanted=request.scheduler_output.want_state_digest)
        return IntermediateTensors(
            key=key,
            descriptors=tuple(tensor.descriptor for tensor in tensors),
            inline=tensors if request.inline_reply else None,
            timings=timings,
            cudagraph_stats=self._runner.last_stats,
            state_digest=digests.state,
            kv_digest=digests.kv,
        )

    @contextmanager
    def _running(self, key: StepKey) -> Iterator[None]:
        """Show the body as COMPUTE, and end the generation when it fails."""
        try:
            with self._board.computing(key.step_id, deadline=self._deadline):
                yield
        except StepRefused:
            raise
        except Exception as error:
            failure = StepFailed(
                f"step {key.step_id.step} failed in its {key.phase.name.lower()} phase: "
                f"{type(error).__name__}: {error}"
            )
            self._guard.fail(failure)
            self._log_failure(key, failure, error)
            raise failure from error

    def _log_failure(self, key: StepKey, failure: StepFailed, error: Exception) -> None:
        # The end of a generation cuts the waits of steps in flight short: nothing is wrong with them.
        is_over = isinstance(error, Cancelled)
        logger.log(
            logging.INFO if is_over else logging.WARNING,
            "step given up" if is_over else "step failed",
            extra={
                "step": key.step_id.step,
                "cause": str(failure),
                "trace_ids": self._spans.trace_ids(self._output) if self._output else [],
            },
            exc_info=None if is_over else error,
        )


def _check_inline(request: ExecuteModel) -> None:
    """Raise InvalidStep for another step's tensors, TensorError for damaged ones."""
    given, step_id = request.intermediate_tensors, request.scheduler_output.step_id
    if given is None:
        return
    if given.key.step_id != step_id:
        raise InvalidStep(f"{step_id} came with the intermediate tensors of {given.key.step_id}")
    for tensor in given.inline or ():
        tensor.verify()
