"""Which stage of a scripted pipeline has finished which step; stands for its tensor channels."""

import asyncio

from common.step import StepId


class StageHandoff:
    """Finished steps that the next stage has not taken up yet."""

    def __init__(self) -> None:
        self._finished: dict[tuple[int, StepId], asyncio.Event] = {}

    def finish(self, stage: int, step_id: StepId) -> None:
        """Say that a stage has finished a step."""
        self._event(stage, step_id).set()

    async def wait(self, stage: int, step_id: StepId) -> None:
        """Wait until a stage has finished a step, then forget it."""
        await self._event(stage, step_id).wait()
        del self._finished[stage, step_id]

    def _event(self, stage: int, step_id: StepId) -> asyncio.Event:
        return self._finished.setdefault((stage, step_id), asyncio.Event())
