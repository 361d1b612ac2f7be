"""The answer of a worker group to one step, waited for as the engine loop does."""

import asyncio

from common.step import ModelRunnerOutput, SchedulerOutput
from coordinator.executors.executor import Executor


async def step_answer(executor: Executor, output: SchedulerOutput) -> ModelRunnerOutput:
    """Send a step, wait until it is settled, and take what the last stage sampled."""
    is_settled = asyncio.Event()
    step = executor.execute_model(output, on_settled=is_settled.set)
    await is_settled.wait()
    result = executor.sample_tokens(step)
    executor.note_answered(step)
    return result
