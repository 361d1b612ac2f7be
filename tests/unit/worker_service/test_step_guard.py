"""The order of steps within a generation."""

import pytest

from common.errors import Fenced, InvalidStep, NeedResync, StaleStep, StepFailed, WrongOrder
from common.step import SchedulerOutput, StepId
from worker_service.step_guard import StepGuard


def step_id(step: int, *, epoch: int = 3, generation: int = 2) -> StepId:
    """A step of the guard's generation unless told otherwise."""
    return StepId(epoch=epoch, generation=generation, step=step)


def planned(step: int, *, base_step: int | None = None) -> SchedulerOutput:
    """A step planned on the one before it unless told otherwise."""
    base = step - 1 if base_step is None else base_step
    return SchedulerOutput(step_id=step_id(step), base_step=base)


@pytest.fixture
def guard() -> StepGuard:
    """The guard of epoch 3, generation 2, which has seen no step."""
    return StepGuard(epoch=3, generation=2)


def test_dense_steps_pass(guard: StepGuard) -> None:
    """Each step planned on the one before it may run, with or without a sample phase."""
    for number in range(1, 5):
        guard.check_execute(planned(number))
        has_sample = number % 2 == 0
        guard.executed(step_id(number), is_sample_due=has_sample)
        if has_sample:
            guard.check_sample(step_id(number))
            guard.sampled()


@pytest.mark.parametrize("foreign", [{"epoch": 2}, {"epoch": 4}, {"generation": 1}])
def test_other_epoch_or_generation_is_fenced(guard: StepGuard, foreign: dict[str, int]) -> None:
    """Both phases of another epoch or generation are refused, whatever their number."""
    stranger = step_id(1, **foreign)
    with pytest.raises(Fenced, match="serves epoch 3 generation 2"):
        guard.check_execute(SchedulerOutput(step_id=stranger, base_step=0))
    with pytest.raises(Fenced):
        guard.check_sample(stranger)


def test_step_on_another_base_needs_resync(guard: StepGuard) -> None:
    """A step planned on one this worker has not applied is refused and may be sent rightly later."""
    with pytest.raises(NeedResync, match="planned on step 1, this worker applied step 0"):
        guard.check_execute(planned(2))
    guard.check_execute(planned(1))


def test_step_after_a_gap_is_invalid(guard: StepGuard) -> None:
    """Step numbers are dense: a gap is a bug of the sender."""
    with pytest.raises(InvalidStep, match="gap"):
        guard.check_execute(planned(2, base_step=0))


def test_applied_step_is_stale(guard: StepGuard) -> None:
    """A step that was applied is not applied again, also while the sample phase of another is due."""
    guard.executed(step_id(1), is_sample_due=False)
    with pytest.raises(StaleStep):
        guard.check_execute(planned(1))
    guard.executed(step_id(2), is_sample_due=True)
    with pytest.raises(StaleStep):
        guard.check_execute(planned(1))
    with pytest.raises(StaleStep):
        guard.check_sample(step_id(1))


def test_execute_twice_without_sampling_is_wrong_order(guard: StepGuard) -> None:
    """While a sample phase is due, no step executes: neither the same nor the next one."""
    guard.executed(step_id(1), is_sample_due=True)
    for number in (1, 2):
        with pytest.raises(WrongOrder, match="sample phase of step 1 is due"):
            guard.check_execute(planned(number))
    guard.check_sample(step_id(1))


def test_sample_before_execute_is_wrong_order(guard: StepGuard) -> None:
    """Only the step that was executed last, and only once, may be sampled."""
    with pytest.raises(WrongOrder):
        guard.check_sample(step_id(1))
    guard.executed(step_id(1), is_sample_due=True)
    with pytest.raises(WrongOrder):
        guard.check_sample(step_id(2))
    guard.sampled()
    with pytest.raises(StaleStep):
        guard.check_sample(step_id(1))


def test_failure_ends_the_generation(guard: StepGuard) -> None:
    """After a failed step both phases are refused, naming the first cause."""
    guard.executed(step_id(1), is_sample_due=True)
    guard.fail(StepFailed("step 1 failed: out of memory"))
    with pytest.raises(StepFailed, match="out of memory"):
        guard.check_sample(step_id(1))
    with pytest.raises(StepFailed, match="out of memory"):
        guard.check_execute(planned(2))
