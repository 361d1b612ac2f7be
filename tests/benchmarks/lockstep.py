"""A worker group that is sent one step at a time: what a step of so many decodes takes.

Measured twice: where it computes, by the worker's own clock, and around the whole step, from planning
to commit. Nothing else runs meanwhile: no streams, no text, no second step in flight.
"""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.config import CoordinatorConfig
from common.model_folder import read_model_folder
from common.step import SchedulerOutput
from coordinator.executors.deadlines import compute_seconds
from coordinator.executors.executor import Executor
from coordinator.executors.launch import worker_fleet
from coordinator.scheduling.scheduler import Scheduler
from tests.benchmarks.load import VOCAB_SIZE
from tests.fakes.scripted_replica import request
from tests.fakes.step_answer import step_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Milliseconds of one step: computing on the last stage, and altogether."""

    compute_ms: float
    whole_ms: float


class Lockstep:
    """Plans, sends and commits steps in turns; made by `lockstep`."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler

    async def decode(
        self, *, num_rows: int, prompt_len: int, num_tokens: int, seed: int
    ) -> list[StepTime]:
        """Answer num_rows prompts; the steps that decoded all of them."""
        draw = random.Random(seed)
        for _ in range(num_rows):
            prompt = tuple(draw.randrange(VOCAB_SIZE) for _ in range(prompt_len))
            self._scheduler.add(request(prompt, max_tokens=num_tokens, ignore_eos=True))
        times: list[StepTime] = []
        started = time.monotonic()
        while (output := self._scheduler.schedule()) is not None:
            compute_ms = await self.run(output)
            ended = time.monotonic()
            if output.num_rows == output.total_num_scheduled_tokens == num_rows:
                times.append(StepTime(compute_ms=compute_ms, whole_ms=(ended - started) * 1e3))
            started = ended
        return times

    async def run(self, output: SchedulerOutput) -> float:
        """Execute and commit a planned step; milliseconds of its computing."""
        result = await step_answer(self._executor, output)
        self._scheduler.update_from_output(output, result)
        return compute_seconds(result.timings) * 1e3


@asynccontextmanager
async def lockstep(config: CoordinatorConfig) -> AsyncIterator[Lockstep]:
    """Bring the workers of a configuration up, warm, and end them afterwards."""
    folder = read_model_folder(Path(config.model.model))
    fleet = worker_fleet(config)
    try:
        executor = await Executor.create(await fleet.connect(), config, folder)
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
        scheduler.begin_generation(epoch=executor.authority.epoch, generation=executor.generation)
        steps = Lockstep(executor, scheduler)
        await steps.run(scheduler.plan_warm_up())
        yield steps
        await executor.shutdown()
    finally:
        await fleet.close()
