"""When a device thread counts as hung, and when it is given up."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.worker_api import DevicePhase
from tests.fakes.manual_clock import ManualClock
from tests.fakes.manual_steps import GENERATION, step_id
from worker_service.phase_board import PhaseBoard
from worker_service.watchdog import LOOK_SECONDS, Watchdog

DEADLINE = 2.0
HANG_EXIT = 5.0


class Watched:
    """A watchdog on a device thread played by the test, and what it told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.board = PhaseBoard(self.clock)
        self.told: list[bool] = []
        self.causes: list[str] = []
        self.newest = GENERATION
        self.watchdog = Watchdog(
            self.board,
            self.clock,
            hang_exit=HANG_EXIT,
            is_over=lambda step_id: step_id.generation < self.newest,
            on_hung=self.told.append,
            on_stuck=self.causes.append,
        )

    @contextmanager
    def computing(self, seconds: float, *, step: int = 1) -> Iterator[None]:
        """A step that has computed for so long, and is looked at."""
        with self.board.computing(step_id(step), deadline=DEADLINE):
            self.clock.advance(seconds)
            self.watchdog.look()
            yield


def test_slow_step_within_its_deadline_is_not_hung() -> None:
    """Nothing is told of steps that take less than their deadline, however many follow each other."""
    watched = Watched()
    for step in range(1, 4):
        with watched.computing(DEADLINE - 0.1, step=step):
            pass
    assert watched.told == []


def test_hang_is_told_once_and_so_is_its_end() -> None:
    """A kernel that returns makes the thread healthy again."""
    watched = Watched()
    with watched.computing(DEADLINE):
        watched.clock.advance(1.0)
        watched.watchdog.look()
    watched.watchdog.look()
    assert watched.told == [True, False]
    assert watched.causes == []


def test_next_look_is_at_the_deadline() -> None:
    """A hang is told at the deadline rather than at the next regular look."""
    watched = Watched()
    with watched.board.computing(step_id(1), deadline=DEADLINE):
        assert watched.watchdog.look() == LOOK_SECONDS
        watched.clock.advance(DEADLINE - LOOK_SECONDS / 4)
        assert watched.watchdog.look() == LOOK_SECONDS / 4


def test_stuck_thread_is_given_up_after_hang_exit() -> None:
    """The time counts from the deadline, and the cause names the step."""
    watched = Watched()
    with watched.computing(DEADLINE + HANG_EXIT - 0.1, step=17):
        assert watched.causes == []
        watched.clock.advance(0.1)
        watched.watchdog.look()
    assert watched.causes == ["stuck in step 17, 5.0 s beyond its deadline"]


def test_hang_in_a_generation_that_is_over_is_given_up_at_once() -> None:
    """A newer generation does not wait for hang_exit."""
    watched = Watched()
    with watched.computing(DEADLINE, step=17):
        watched.newest = GENERATION + 1
        watched.watchdog.look()
    assert watched.causes == [
        "stuck in step 17, 0.0 s beyond its deadline, in a generation that is over"
    ]


def test_step_of_a_generation_that_is_over_has_until_its_deadline() -> None:
    """A kernel that runs when the newer generation asks may finish."""
    watched = Watched()
    watched.newest = GENERATION + 1
    with watched.computing(DEADLINE - 0.1):
        pass
    assert watched.causes == []


def test_time_in_which_the_process_stood_still_is_no_hang() -> None:
    """Who wakes up from a standstill gives the step that much longer, and its exit as well."""
    watched = Watched()
    with watched.board.computing(step_id(1), deadline=DEADLINE):
        watched.clock.advance(60.0)
        watched.watchdog.note_slept(60.0 - LOOK_SECONDS)
        watched.watchdog.look()
        assert watched.told == []
        watched.clock.advance(DEADLINE)
        watched.watchdog.look()
        watched.watchdog.note_slept(LOOK_SECONDS)  # a pause that is a little late excuses nothing
        watched.watchdog.look()
    assert watched.told == [True]
    assert watched.causes == []


def test_verdict_is_of_one_activity() -> None:
    """What the board tells others is what the watchdog found, and void once the thread moves on."""
    watched = Watched()
    with watched.board.computing(step_id(1), deadline=DEADLINE):
        watched.clock.advance(DEADLINE)
        assert not watched.board.is_found_hung(watched.board.activity)
        watched.watchdog.look()
        assert watched.board.is_found_hung(watched.board.activity)
    assert not watched.board.is_found_hung(watched.board.activity)


def test_waiting_and_compiling_never_hang() -> None:
    """Who waits for another stage, or loads a model, is not stuck, however long it takes."""
    watched = Watched()
    for phase in (DevicePhase.WAIT_INPUT, DevicePhase.SENDING, DevicePhase.COMPILING):
        with watched.board.during(phase):
            watched.clock.advance(1e6)
            watched.watchdog.look()
    assert watched.told == watched.causes == []
