"""The monitor over workers that only say what they do, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

from common.errors import WorkerLost
from common.worker_api import DevicePhase, Rank, WorkerActivity, WorkerApi
from coordinator.executors.members import Member
from coordinator.recovery.monitor import GroupMonitor
from tests.fakes.virtual_time import run_in_virtual_time

FIRST, SECOND = Rank(stage=0), Rank(stage=1)


class LoopClock:
    """The time of the running loop, and what passed while the loop did not run."""

    def __init__(self) -> None:
        self.stopped_seconds = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return asyncio.get_running_loop().time() + self.stopped_seconds

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return round(self.monotonic() * 1e9)

    def unix_time(self) -> float:
        """Seconds."""
        return self.monotonic()


class TalkingWorker:
    """Says every interval that it is idle, or computes since some moment, until it is muted or lost."""

    def __init__(self) -> None:
        self.address = "talking:0"
        self.computes_since: float | None = None
        self.hangs_after = float("inf")
        self.is_muted = False
        self.is_lost = False

    async def watch_status(self, *, interval: float) -> AsyncIterator[WorkerActivity]:
        """One word each interval."""
        while not self.is_muted:
            if self.is_lost:
                raise WorkerLost("killed by SIGKILL")
            yield self._activity()
            await asyncio.sleep(interval)
        await asyncio.Event().wait()

    def _activity(self) -> WorkerActivity:
        since = self.computes_since
        age = 0.0 if since is None else asyncio.get_running_loop().time() - since
        return WorkerActivity(
            state="SERVING",
            epoch=1,
            generation=1,
            step=3,
            phase=DevicePhase.IDLE if since is None else DevicePhase.COMPUTE,
            seconds_in_phase=age,
            is_hung=age > self.hangs_after,
        )


class Watched:
    """Two talking workers, their monitor, and whom it blamed when."""

    def __init__(self) -> None:
        self.workers = {FIRST: TalkingWorker(), SECOND: TalkingWorker()}
        self.clock = LoopClock()
        self.blamed: list[tuple[float, Rank, str]] = []
        self.monitor = GroupMonitor(
            [
                Member(rank=rank, worker=cast(WorkerApi, worker))
                for rank, worker in self.workers.items()
            ],
            self.clock,
            on_blamed=lambda rank, cause: self.blamed.append((self.now, rank, cause)),
        )
        self.task = asyncio.create_task(self.monitor.run())

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    async def end(self) -> None:
        """Stop watching."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1, "the monitor left a task behind"


def watch(body: Any) -> Watched:
    """Run a coroutine function over a watched pair, and end it."""

    async def main() -> Watched:
        watched = Watched()
        await cast(Coroutine[Any, Any, None], body(watched))
        await watched.end()
        return watched

    return run_in_virtual_time(main())


def test_well_behaved_group_is_watched_for_ever():
    """An hour of idle workers blames nobody; their last words can be read."""

    async def body(watched: Watched) -> None:
        await asyncio.sleep(3600.0)
        said = watched.monitor.activity(SECOND)
        assert said is not None
        assert said.phase is DevicePhase.IDLE
        assert not watched.task.done()

    assert watch(body).blamed == []


def test_silent_worker_is_blamed_within_three_seconds():
    """The monitor ends with the blame."""

    async def body(watched: Watched) -> None:
        await asyncio.sleep(10.0)
        watched.workers[SECOND].is_muted = True
        await watched.task

    [(blamed_at, rank, cause)] = watch(body).blamed
    assert (rank, 12.0 <= blamed_at <= 12.6) == (SECOND, True)
    assert cause.startswith("its event loop is silent for 2.")


def test_hung_worker_is_blamed_with_its_deadline():
    """The worker's own watchdog speaks first: long before the step is overdue for all stages."""

    async def body(watched: Watched) -> None:
        watched.monitor.step_sent(3, {FIRST: 2.0, SECOND: 2.0})
        watched.workers[FIRST].computes_since = 0.0
        watched.workers[FIRST].hangs_after = 2.0
        await watched.task

    [(blamed_at, rank, cause)] = watch(body).blamed
    assert (rank, 2.0 <= blamed_at <= 2.6) == (FIRST, True)
    assert cause.startswith("in COMPUTE of step 3 for 2.")
    assert cause.endswith("its deadline is 2.0 s")


def test_overdue_step_is_blamed_on_who_computes():
    """A watchdog that says nothing does not save the rank."""

    async def body(watched: Watched) -> None:
        watched.monitor.step_sent(3, {FIRST: 2.0, SECOND: 2.0})
        watched.workers[SECOND].computes_since = 1.0
        await watched.task

    [(blamed_at, rank, _)] = watch(body).blamed
    assert (rank, 4.0 <= blamed_at <= 4.6) == (SECOND, True)


def test_answered_steps_are_not_overdue():
    """Steps that come and go keep the monitor quiet."""

    async def body(watched: Watched) -> None:
        for step in range(1, 50):
            watched.monitor.step_sent(step, {FIRST: 2.0, SECOND: 2.0})
            await asyncio.sleep(3.0)
            watched.monitor.step_answered(step)

    assert watch(body).blamed == []


def test_lost_worker_is_left_to_who_holds_it():
    """Its client reports the loss with the better cause; silence after it is not blamed at once."""

    async def body(watched: Watched) -> None:
        watched.workers[FIRST].is_lost = True
        await asyncio.sleep(1.5)

    assert watch(body).blamed == []


def test_coordinator_that_was_stopped_blames_nobody():
    """A minute in which it did not run is not the silence of its workers, nor a step's time."""

    async def body(watched: Watched) -> None:
        await asyncio.sleep(1.1)
        watched.monitor.step_sent(3, {FIRST: 2.0, SECOND: 2.0})
        watched.clock.stopped_seconds = 60.0
        await asyncio.sleep(1.0)
        watched.monitor.step_answered(3)
        await asyncio.sleep(10.0)

    assert watch(body).blamed == []
