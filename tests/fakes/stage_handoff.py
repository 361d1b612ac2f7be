"""What has passed between the stages of a scripted pipeline; stands for its tensor channels."""

import asyncio
from dataclasses import replace

from common.step import SchedulerOutput, StepId


class StageHandoff:
    """Finished steps that the next stage has not taken up yet, and how far the last one has sampled."""

    def __init__(self) -> None:
        self._finished: dict[tuple[int, StepId], asyncio.Event] = {}
        self._last_sampled = StepId(epoch=0, generation=0, step=0)
        self._sampled_more = asyncio.Event()

    def finish(self, stage: int, step_id: StepId) -> None:
        """Say that a stage has finished a step."""
        self._event(stage, step_id).set()

    def sample(self, step_id: StepId) -> None:
        """Say that the last stage has sampled a step."""
        self._last_sampled = step_id
        self._sampled_more.set()
        self._sampled_more = asyncio.Event()

    async def wait_inputs(self, stage: int, output: SchedulerOutput) -> bool:
        """Wait for what a stage needs of others for a step, and say whether there was anything."""
        if stage:
            await self._wait(stage - 1, output.step_id)
            return True
        source_step = int(output.cached_requests.token_source_steps.max(initial=0))
        source = replace(output.step_id, step=source_step)
        is_waiting = source_step > 0 and self._last_sampled < source
        while source_step and self._last_sampled < source:
            await self._sampled_more.wait()
        return is_waiting

    async def _wait(self, stage: int, step_id: StepId) -> None:
        """Wait until a stage has finished a step, then forget it."""
        await self._event(stage, step_id).wait()
        del self._finished[stage, step_id]

    def _event(self, stage: int, step_id: StepId) -> asyncio.Event:
        return self._finished.setdefault((stage, step_id), asyncio.Event())
