"""What the device thread tells of itself."""

import pytest

from common.worker_api import DevicePhase, Rank
from tests.fakes.manual_clock import ManualClock
from tests.fakes.manual_steps import step_id
from worker_service.phase_board import DeviceActivity, PhaseBoard


def test_new_board_is_idle() -> None:
    """Before the first step the thread is idle since the board was made."""
    clock = ManualClock()
    assert PhaseBoard(clock).activity == DeviceActivity(
        phase=DevicePhase.IDLE, since=clock.monotonic()
    )


def test_compute_starts_anew_behind_a_wait() -> None:
    """The wait for the previous stage names it and does not count as COMPUTE, nor does what came before."""
    clock = ManualClock()
    board = PhaseBoard(clock)
    with board.computing(step_id(7), deadline=2.0):
        with board.during(DevicePhase.WAIT_INPUT, waiting_on=Rank(stage=1)):
            waiting = board.activity
            clock.advance(60.0)
        computing = board.activity
    assert (waiting.phase, waiting.step, waiting.waiting_on) == (
        DevicePhase.WAIT_INPUT,
        7,
        Rank(stage=1),
    )
    assert computing == DeviceActivity(
        phase=DevicePhase.COMPUTE, since=clock.monotonic(), step_id=step_id(7), deadline=2.0
    )


def test_idle_board_remembers_the_step() -> None:
    """After a step, also a failed one, the thread is idle and tells which step ran last."""
    board = PhaseBoard(ManualClock())
    with pytest.raises(ZeroDivisionError), board.computing(step_id(7), deadline=2.0):
        _ = 1 / 0
    activity = board.activity
    assert (activity.phase, activity.step, activity.deadline) == (DevicePhase.IDLE, 7, None)


def test_only_compute_beyond_its_deadline_is_hung() -> None:
    """Neither a wait of any length, nor COMPUTE without or within its deadline."""
    clock = ManualClock()
    board = PhaseBoard(clock)
    with board.computing(step_id(1), deadline=2.0):
        computing = board.activity
        with board.during(DevicePhase.SENDING, waiting_on=Rank(stage=1)):
            sending = board.activity
    with board.computing(step_id(2), deadline=None):
        unlimited = board.activity
    with board.during(DevicePhase.COMPILING):
        compiling = board.activity
    start = clock.monotonic()
    assert not computing.is_hung(start + 1.9)
    assert computing.is_hung(start + 2.0)
    assert not any(other.is_hung(start + 1e6) for other in (sending, unlimited, compiling))


def test_excused_time_makes_a_phase_younger_but_never_unborn() -> None:
    """A phase that began within the time excused has age 0."""
    clock = ManualClock()
    board = PhaseBoard(clock)
    with board.computing(step_id(1), deadline=2.0):
        clock.advance(5.0)
        board.excuse(4.0)
        assert clock.monotonic() - board.activity.since == 1.0
        board.excuse(4.0)
        assert clock.monotonic() - board.activity.since == 0.0
