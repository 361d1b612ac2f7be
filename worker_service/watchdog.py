"""Finds out that the device thread hangs, from the event loop, and when to give it up.

A kernel cannot be interrupted: a process whose device thread stays stuck is of no use to anyone,
and only its exit frees the device. Knows nothing of health services and exit codes.
"""

import asyncio
from collections.abc import Callable

from common.clock import Clock
from common.logs import get_logger
from common.step import StepId
from worker_service.phase_board import DeviceActivity, PhaseBoard

logger = get_logger(__name__)

LOOK_SECONDS = 0.25
"""How often it looks; a deadline that is longer is met exactly."""


class Watchdog:
    """Watches one device thread.

    `on_hung` is told whether it hangs, at each change; `on_stuck` the cause, once it has hung for
    `hang_exit` seconds, or as soon as it hangs in a step of which `is_over` says that its generation
    is over: nobody waits for the result, and a new generation may wait for the thread.
    """

    def __init__(
        self,
        board: PhaseBoard,
        clock: Clock,
        *,
        hang_exit: float,
        is_over: Callable[[StepId], bool],
        on_hung: Callable[[bool], None],
        on_stuck: Callable[[str], None],
    ) -> None:
        self._board = board
        self._clock = clock
        self._hang_exit = hang_exit
        self._is_over = is_over
        self._on_hung = on_hung
        self._on_stuck = on_stuck
        self._is_hung = False

    async def run(self) -> None:
        """Look again and again; never returns."""
        while True:
            pause, slept_at = self.look(), self._clock.monotonic()
            await asyncio.sleep(pause)
            self.note_slept(self._clock.monotonic() - slept_at - pause)

    def note_slept(self, oversleep: float) -> None:
        """The last pause was so many seconds too long.

        When the machine stands still, or has no time for this process, the device thread stands
        still as well: that is no hang.
        """
        if oversleep > LOOK_SECONDS:
            self._board.excuse(oversleep)

    def look(self) -> float:
        """Judge what the device thread does now; returns the seconds until the next look is due."""
        activity, now = self._board.activity, self._clock.monotonic()
        is_hung = activity.is_hung(now)
        if is_hung:
            self._board.note_hung(activity)
        if is_hung is not self._is_hung:
            self._is_hung = is_hung
            self._tell(activity, now)
        if activity.hangs_at is None:
            return LOOK_SECONDS
        if not is_hung:
            return min(LOOK_SECONDS, activity.hangs_at - now)
        return self._give_up_when_due(activity, hung_for=now - activity.hangs_at)

    def _give_up_when_due(self, activity: DeviceActivity, *, hung_for: float) -> float:
        """Tell the cause of a hang that will not be waited for; returns when to look again."""
        step_id = activity.step_id
        stuck = f"stuck in step {activity.step}, {hung_for:.1f} s beyond its deadline"
        if step_id is not None and self._is_over(step_id):
            self._on_stuck(f"{stuck}, in a generation that is over")
        elif hung_for >= self._hang_exit:
            self._on_stuck(stuck)
        return min(LOOK_SECONDS, max(self._hang_exit - hung_for, 0.0))

    def _tell(self, activity: DeviceActivity, now: float) -> None:
        logger.warning(
            "device thread hangs" if self._is_hung else "device thread is back",
            extra={"step": activity.step, "seconds_in_phase": now - activity.since},
        )
        self._on_hung(self._is_hung)
