"""Who is blamed: three ranks that say what they do, on a clock that the test moves."""

import pytest

from common.worker_api import DevicePhase, Rank, WorkerActivity
from coordinator.recovery.stalls import Stall, StallDetector

FIRST, MIDDLE, LAST = (Rank(stage=stage) for stage in range(3))
RANKS = (FIRST, MIDDLE, LAST)
DEADLINES = {FIRST: 2.0, MIDDLE: 2.0, LAST: 3.0}


def activity(
    phase: DevicePhase,
    *,
    step: int = 1,
    seconds: float = 0.0,
    waiting_on: Rank | None = None,
    is_hung: bool = False,
) -> WorkerActivity:
    """What a serving rank says."""
    return WorkerActivity(
        state="SERVING",
        epoch=1,
        generation=1,
        step=step,
        phase=phase,
        seconds_in_phase=seconds,
        waiting_on=waiting_on,
        is_hung=is_hung,
    )


IDLE = activity(DevicePhase.IDLE)


def waiting_for(rank: Rank, *, step: int = 1, seconds: float = 0.0) -> WorkerActivity:
    """Waits for the tensors of another rank."""
    return activity(DevicePhase.WAIT_INPUT, step=step, seconds=seconds, waiting_on=rank)


@pytest.fixture
def detector() -> StallDetector:
    """Three ranks that were heard at time 0."""
    return StallDetector(RANKS, now=0.0, max_silence=2.0)


def note_all(detector: StallDetector, *, now: float, **by_name: WorkerActivity) -> None:
    """All ranks speak; those not named are idle."""
    for name, rank in (("first", FIRST), ("middle", MIDDLE), ("last", LAST)):
        detector.note_activity(rank, by_name.get(name, IDLE), now=now)


def test_group_at_work_is_not_blamed(detector):
    """Computing within the deadlines is no stall, however long the others wait."""
    detector.note_sent(1, DEADLINES, now=0.0)
    note_all(
        detector,
        now=1.9,
        first=activity(DevicePhase.COMPUTE, seconds=1.9),
        middle=waiting_for(FIRST, seconds=100.0),
        last=waiting_for(MIDDLE, seconds=100.0),
    )
    assert detector.find(now=2.0) is None


def test_silent_event_loop_is_blamed(detector):
    """More than two seconds without a word; the one silent for longest."""
    note_all(detector, now=1.0)
    for rank in (FIRST, LAST):
        detector.note_activity(rank, IDLE, now=2.5)
    assert detector.find(now=3.0) is None
    assert detector.find(now=3.5) == Stall(rank=MIDDLE, cause="its event loop is silent for 2.5 s")


def test_rank_that_never_spoke_is_silent(detector):
    """Silence counts from the start."""
    for rank in (FIRST, MIDDLE):
        detector.note_activity(rank, IDLE, now=2.0)
    stall = detector.find(now=2.1)
    assert stall is not None
    assert stall.rank == LAST


def test_hung_middle_rank_is_blamed_and_not_who_waits_for_it(detector):
    """The last rank waits for longer than the middle one computes."""
    detector.note_sent(17, DEADLINES, now=0.0)
    note_all(
        detector,
        now=2.5,
        first=activity(DevicePhase.IDLE, step=17),
        middle=activity(DevicePhase.COMPUTE, step=17, seconds=2.1, is_hung=True),
        last=waiting_for(MIDDLE, step=17, seconds=2.5),
    )
    assert detector.find(now=2.6) == Stall(
        rank=MIDDLE, cause="in COMPUTE of step 17 for 2.2 s, its deadline is 2.0 s"
    )


def test_long_step_within_its_deadline_is_not_blamed_for_another_that_hangs(detector):
    """A prefill may take longer than a decode that hangs."""
    note_all(
        detector,
        now=1.0,
        first=activity(DevicePhase.COMPUTE, step=2, seconds=8.0),
        middle=activity(DevicePhase.COMPUTE, step=1, seconds=3.0, is_hung=True),
    )
    stall = detector.find(now=1.0)
    assert stall is not None
    assert stall.rank == MIDDLE


def test_unanswered_step_blames_the_rank_longest_in_compute(detector):
    """After the deadlines of all stages, also when no watchdog says that it hangs."""
    detector.note_sent(1, DEADLINES, now=0.0)
    note_all(
        detector,
        now=6.0,
        first=waiting_for(MIDDLE, seconds=6.0),
        middle=activity(DevicePhase.COMPUTE, seconds=5.0),
        last=activity(DevicePhase.COMPUTE, seconds=1.0),
    )
    assert detector.find(now=7.0) is None
    stall = detector.find(now=7.1)
    assert stall is not None
    assert stall.rank == MIDDLE


def test_steps_queued_behind_the_oldest_are_not_overdue(detector):
    """The time of a step begins with the answer to the one before it."""
    for step in (1, 2):
        detector.note_sent(step, DEADLINES, now=0.0)
    detector.note_answered(1, now=6.0)
    note_all(detector, now=12.9, middle=activity(DevicePhase.COMPUTE, step=2, seconds=1.0))
    assert detector.find(now=12.9) is None
    note_all(detector, now=13.1, middle=activity(DevicePhase.COMPUTE, step=2, seconds=1.2))
    assert detector.find(now=13.1) is not None


def test_idle_group_is_never_overdue(detector):
    """Without a step in flight nothing is due, for hours."""
    detector.note_sent(1, DEADLINES, now=0.0)
    detector.note_answered(1, now=1.0)
    note_all(detector, now=9999.0)
    assert detector.find(now=9999.0) is None


def test_step_that_nobody_computes_blames_who_waits_for_nobody(detector):
    """A frame that got lost: the rank behind, which waits, is innocent."""
    detector.note_sent(5, DEADLINES, now=0.0)
    note_all(
        detector,
        now=7.5,
        first=activity(DevicePhase.IDLE, step=5),
        middle=activity(DevicePhase.IDLE, step=4),
        last=waiting_for(MIDDLE, step=3),
    )
    cause = (
        "step 5 is unanswered for 7.5 s and no rank computes it"
        "; stage 2 waits for tensors of stage 1"
    )
    assert detector.find(now=7.5) == Stall(rank=MIDDLE, cause=cause)


def test_tensors_that_never_arrive_are_not_waited_for_until_the_deadline(detector):
    """A step that every rank has left, or waits for, is lost however long it may compute."""
    detector.note_sent(1, dict.fromkeys(RANKS, 100.0), now=0.0)

    def note_quiet(now: float) -> None:
        note_all(
            detector,
            now=now,
            first=activity(DevicePhase.IDLE, seconds=now - 0.5),
            middle=waiting_for(FIRST, seconds=now),
            last=waiting_for(MIDDLE, seconds=now),
        )

    note_quiet(10.0)
    assert detector.find(now=10.4) is None
    note_quiet(11.0)
    cause = (
        "step 1 is unanswered for 11.0 s and no rank computes it"
        "; stage 1 waits for tensors of stage 0; stage 2 waits for tensors of stage 1"
    )
    assert detector.find(now=11.0) == Stall(rank=FIRST, cause=cause)


@pytest.mark.parametrize("phase", [DevicePhase.COMPUTE, DevicePhase.COMPILING])
def test_rank_that_works_long_is_waited_for(detector, phase):
    """Within its deadline a step may keep a rank busy for a minute."""
    detector.note_sent(1, dict.fromkeys(RANKS, 100.0), now=0.0)
    busy = activity(phase, seconds=60.0)
    note_all(detector, now=60.0, first=busy, middle=waiting_for(FIRST, seconds=60.0))
    assert detector.find(now=60.0) is None


def test_time_in_which_nobody_listened_is_excused(detector):
    """A coordinator that was stopped for a minute blames nobody when it wakes."""
    detector.note_sent(1, DEADLINES, now=0.0)
    note_all(detector, now=1.0, middle=activity(DevicePhase.COMPUTE, seconds=1.0))
    detector.excuse(60.0, now=61.0)
    assert detector.find(now=61.0) is None
    note_all(detector, now=61.1)
    assert detector.find(now=62.0) is None


def test_last_word_is_kept(detector):
    """What a rank said stays readable; before that there is nothing."""
    assert detector.activity(FIRST) is None
    detector.note_activity(FIRST, IDLE, now=0.5)
    assert detector.activity(FIRST) is IDLE
