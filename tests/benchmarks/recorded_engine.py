"""A loop over real workers that keeps when each of them computed each step, by what their answers say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common.config import CoordinatorConfig
from common.model_folder import read_model_folder
from common.step import ModelRunnerOutput
from coordinator.engine.loop import EngineLoop
from coordinator.executors.executor import Executor
from coordinator.executors.launch import worker_fleet
from coordinator.executors.step_in_flight import StepInFlight
from coordinator.scheduling.scheduler import Scheduler

Interval = tuple[int, int]
"""Begin and end in nanoseconds of the monotonic clock."""


class RecordingExecutor(Executor):
    """Keeps when each stage computed each step."""

    def __init__(self, **made_of: Any) -> None:
        super().__init__(**made_of)
        self.computed: list[list[Interval]] = [[] for _ in self.members]

    def sample_tokens(self, step: StepInFlight) -> ModelRunnerOutput:
        """Note the timings of all stages as well."""
        for intervals, reply in zip(self.computed, step.replies, strict=True):
            timings = reply.result().timings
            intervals.append((timings.compute_start_ns, timings.compute_end_ns))
        return super().sample_tokens(step)


class RecordedEngine:
    """A loop over real workers, and the executor that keeps their times."""

    def __init__(self, loop: EngineLoop, executor: RecordingExecutor) -> None:
        self.loop = loop
        self.executor = executor


@asynccontextmanager
async def recorded_engine(config: CoordinatorConfig) -> AsyncIterator[RecordedEngine]:
    """Bring up workers, a scheduler and a loop, and end them afterwards."""
    folder = read_model_folder(Path(config.model.model))
    fleet = worker_fleet(config)
    try:
        executor = await RecordingExecutor.create(await fleet.connect(), config, folder)
        assert isinstance(executor, RecordingExecutor)
        num_blocks = await executor.determine_available_memory()
        await executor.initialize(num_blocks)
        scheduler = Scheduler(
            config.schedule,
            num_stages=executor.num_stages,
            num_blocks=num_blocks,
            block_size=config.cache.block_size,
            max_model_len=executor.max_model_len,
            eos_token_ids=folder.eos_token_ids,
        )
        loop = EngineLoop(scheduler)
        run = asyncio.create_task(loop.run(executor), name="engine loop")
        await loop.wait_until_serving()
        yield RecordedEngine(loop, executor)
        await loop.drain(0)
        await run
        await executor.shutdown()
    finally:
        await fleet.close()
