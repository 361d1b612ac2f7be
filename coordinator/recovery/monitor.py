"""Listens to what every rank of a generation is doing, and tells of the first that stalls the group.

A lost connection is not its business: the client of the worker finds that and reports it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from common.clock import Clock
from common.errors import WorkerLost
from common.worker_api import Rank, WorkerActivity
from coordinator.executors.members import Member
from coordinator.recovery.stalls import StallDetector

STATUS_INTERVAL = 0.25
"""Seconds between two words of a worker, and between two looks at what they said."""

MAX_SILENCE = 2.0
"""Seconds without a word after which an event loop counts as blocked."""


class GroupMonitor:
    """Watches one generation; `run` ends with the first blame, which ends the generation.

    on_blamed(rank, cause) is called on the event loop. max_silence in seconds.
    """

    def __init__(
        self,
        members: Sequence[Member],
        clock: Clock,
        *,
        on_blamed: Callable[[Rank, str], None],
        max_silence: float = MAX_SILENCE,
    ) -> None:
        self._members = members
        self._clock = clock
        self._on_blamed = on_blamed
        self._detector = StallDetector(
            [member.rank for member in members], now=clock.monotonic(), max_silence=max_silence
        )

    async def run(self) -> None:
        """Watch until a rank is blamed or the task is cancelled."""
        listeners = [
            asyncio.create_task(self._listen(member), name=f"activity of {member.rank}")
            for member in self._members
        ]
        try:
            await self._judge()
        finally:
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)

    def activity(self, rank: Rank) -> WorkerActivity | None:
        """What a rank said last, None before it said anything."""
        return self._detector.activity(rank)

    def step_sent(self, step: int, deadlines: Mapping[Rank, float]) -> None:
        """Step number `step` of the generation went to all ranks, with seconds of compute for each."""
        self._detector.note_sent(step, deadlines, now=self._clock.monotonic())

    def step_answered(self, step: int) -> None:
        """Every rank has answered the step."""
        self._detector.note_answered(step, now=self._clock.monotonic())

    async def _listen(self, member: Member) -> None:
        try:
            async for activity in member.worker.watch_status(interval=STATUS_INTERVAL):
                self._detector.note_activity(member.rank, activity, now=self._clock.monotonic())
        except WorkerLost:
            return  # whoever holds the worker hears it as well

    async def _judge(self) -> None:
        looked_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            now = self._clock.monotonic()
            # A loop that was stopped or starved finds its timer before the words that wait for it.
            oversleep = now - looked_at - STATUS_INTERVAL
            if oversleep > STATUS_INTERVAL:
                self._detector.excuse(oversleep, now=now)
            looked_at = now
            stall = self._detector.find(now=now)
            if stall is not None:
                self._on_blamed(stall.rank, stall.cause)
                return
