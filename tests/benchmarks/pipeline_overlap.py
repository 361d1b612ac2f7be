"""Do pipeline stages overlap in real time? Scripted stages of 20 ms against the ideal 50 steps/s.

Run as `python -m tests.benchmarks.pipeline_overlap` from the repository's root.
"""

import asyncio
import time

from common.config import ScheduleConfig
from tests.benchmarks.report import Row, report
from tests.fakes.scripted_engine import scripted_engine
from tests.fakes.scripted_replica import request

STEP_SECONDS = 0.02
MEASURED_SECONDS = 4.0
SEQUENCES_PER_STAGE = 4


async def steps_a_second(*, num_stages: int, schedule: ScheduleConfig) -> tuple[float, float]:
    """Committed steps a second of a full pipeline, and CPU seconds of this process a step.

    The CPU time includes the scripted stages. Measured after a second to fill the pipeline.
    """
    async with scripted_engine(
        num_stages=num_stages,
        schedule=schedule,
        step_seconds=STEP_SECONDS,
        num_blocks=4096,
        is_checking=False,
    ) as engine:
        for index in range(SEQUENCES_PER_STAGE * num_stages):
            engine.loop.submit(request((index,), max_tokens=500, request_id=str(index)))
        await asyncio.sleep(1.0)
        clock = asyncio.get_running_loop().time
        first_step, started, spent = engine.loop.last_step, clock(), time.process_time()
        await asyncio.sleep(MEASURED_SECONDS)
        num_steps = engine.loop.last_step - first_step
        return num_steps / (clock() - started), (time.process_time() - spent) / num_steps


def main() -> None:
    """Measure one, two and four stages, with steps in flight and without."""
    rows: list[Row] = []
    for num_stages in (1, 2, 4):
        for steps_in_flight in sorted({1, num_stages}):
            schedule = ScheduleConfig(max_steps_in_flight=steps_in_flight)
            rate, cpu_seconds = asyncio.run(
                steps_a_second(num_stages=num_stages, schedule=schedule)
            )
            rows.append(
                {
                    "stages": num_stages,
                    "steps in flight": steps_in_flight,
                    "steps/s": rate,
                    "of 50 steps/s": rate * STEP_SECONDS,
                    "CPU ms a step": cpu_seconds * 1e3,
                }
            )
    report("steps/s of scripted 20 ms stages through the engine loop", rows)


if __name__ == "__main__":
    main()
