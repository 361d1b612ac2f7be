"""Whether a step may run now, judged by its key and base step alone, before its content is looked at.

Owned by the device thread. Knows nothing of requests, blocks or tensors.
"""

from common.errors import Fenced, InvalidStep, NeedResync, StaleStep, StepFailed, WrongOrder
from common.step import SchedulerOutput, StepId


class StepGuard:
    """The order of steps within one generation: each is applied once, on top of the one before.

    Every check raises a ServiceError and changes nothing; only `executed`, `sampled` and `fail` do.
    """

    def __init__(self, *, epoch: int, generation: int) -> None:
        self._epoch = epoch
        self._generation = generation
        self._last_step = 0
        self._sample_due: StepId | None = None
        self._failure: StepFailed | None = None

    def check_execute(self, output: SchedulerOutput) -> None:
        """Raise unless this step's execute phase is what comes next.

        Fenced for another epoch or generation; StepFailed once a step of this generation failed;
        StaleStep for one that is over; WrongOrder while a sample phase is due; NeedResync when it
        was planned on another step than the last one applied; InvalidStep when it leaves a gap.
        """
        step_id = output.step_id
        self._check_open(step_id)
        self._check_stale(step_id)
        if self._sample_due is not None:
            raise WrongOrder(
                f"step {step_id.step} was sent while the sample phase of step "
                f"{self._sample_due.step} is due"
            )
        if output.base_step != self._last_step:
            raise NeedResync(
                f"step {step_id.step} was planned on step {output.base_step}, "
                f"this worker applied step {self._last_step}"
            )
        if step_id.step != self._last_step + 1:
            raise InvalidStep(f"step {step_id.step} leaves a gap after step {self._last_step}")

    def check_sample(self, step_id: StepId) -> None:
        """Raise unless this step's sample phase is due: Fenced, StepFailed, StaleStep or WrongOrder."""
        self._check_open(step_id)
        self._check_stale(step_id)
        if self._sample_due != step_id:
            due = "none is" if self._sample_due is None else f"that of {self._sample_due.step} is"
            raise WrongOrder(f"the sample phase of step {step_id.step} is not due, {due}")

    def executed(self, step_id: StepId, *, is_sample_due: bool) -> None:
        """Note that a step was applied and whether its sample phase must follow."""
        self._last_step = step_id.step
        self._sample_due = step_id if is_sample_due else None

    def sampled(self) -> None:
        """Note that the sample phase that was due is done."""
        self._sample_due = None

    def fail(self, failure: StepFailed) -> None:
        """Refuse every further step of this generation with the failure of an earlier one."""
        self._failure = failure

    def _check_stale(self, step_id: StepId) -> None:
        is_due = step_id == self._sample_due
        if step_id.step <= self._last_step and not is_due:
            raise StaleStep(
                f"step {step_id.step} is over and its answer no longer kept; "
                f"the last one was {self._last_step}"
            )

    def _check_open(self, step_id: StepId) -> None:
        if (step_id.epoch, step_id.generation) != (self._epoch, self._generation):
            raise Fenced(
                f"step {step_id.step} is of epoch {step_id.epoch} generation {step_id.generation}, "
                f"this worker serves epoch {self._epoch} generation {self._generation}"
            )
        if self._failure is not None:
            raise StepFailed(
                f"step {step_id.step} not run, the generation is over: {self._failure}"
            )
