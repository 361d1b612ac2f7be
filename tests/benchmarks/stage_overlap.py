"""Do pipeline stages compute at the same time? Two real stages, by what their steps say of their time.

Run as `python -m tests.benchmarks.stage_overlap` from the repository's root. The stages must be on
one machine, whose monotonic clock they share.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.config_loader import cache_folder
from common.model_folder import read_model_folder, resolve_model
from common.step import ModelRunnerOutput
from coordinator.engine.loop import EngineLoop
from coordinator.executors.executor import Executor
from coordinator.executors.launch import worker_fleet
from coordinator.executors.step_in_flight import StepInFlight
from coordinator.scheduling.scheduler import Scheduler
from tests.benchmarks.load import VOCAB_SIZE, Load
from tests.benchmarks.report import Row, report
from tests.fakes.running_replica import generate

LOAD = Load(input_len=512, output_len=16, concurrency=8, num_requests=16)
ROUNDS = 3
NUM_STAGES = 2

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


def overlap(stages: Sequence[Sequence[Interval]]) -> int:
    """Nanoseconds in which all stages compute; the intervals of a stage are in order and disjoint."""
    edges = sorted(
        edge for intervals in stages for begin, end in intervals for edge in ((begin, 1), (end, -1))
    )
    total = num_busy = last = 0
    for at, change in edges:
        if num_busy == len(stages):
            total += at - last
        num_busy += change
        last = at
    return total


async def measure(config: CoordinatorConfig) -> list[Row]:
    """The load, ROUNDS times, after once to warm up."""
    rows: list[Row] = []
    async with recorded_engine(config) as engine:
        for round_ in range(ROUNDS + 1):
            for intervals in engine.executor.computed:
                intervals.clear()
            started = time.monotonic()
            prompts = LOAD.prompts(vocab_size=VOCAB_SIZE, seed=round_)
            await generate(
                engine, prompts, num_tokens=LOAD.output_len, concurrency=LOAD.concurrency
            )
            rows.append(_row(round_, engine.executor.computed, time.monotonic() - started))
    return rows[1:]


def _row(round_: int, stages: Sequence[Sequence[Interval]], seconds: float) -> Row:
    busy = [sum(end - begin for begin, end in intervals) / 1e9 for intervals in stages]
    return {
        "round": round_,
        "wall s": seconds,
        "stage 0 computes": busy[0] / seconds,
        "stage 1 computes": busy[1] / seconds,
        "both at once": overlap(stages) / 1e9 / seconds,
    }


def main() -> None:
    """Measure and report each round and their median."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    config = CoordinatorConfig(
        model=ModelConfig(model=folder, max_model_len=2048),
        cache=CacheConfig(kv_cache_bytes=1 << 29),
        schedule=ScheduleConfig(max_num_batched_tokens=512),
        cluster=ClusterConfig(executor="local", pp=NUM_STAGES, threads=1, device="cpu"),
    )
    rows = asyncio.run(measure(config))
    median: Row = {"round": "median"} | {
        column: statistics.median(float(row[column]) for row in rows)
        for column in list(rows[0])[1:]
    }
    report(
        f"share of the wall time in which stages compute, {LOAD.input_len} in / "
        f"{LOAD.output_len} out, concurrency {LOAD.concurrency}, SmolLM2-135M, pp 2",
        [*rows, median],
    )


if __name__ == "__main__":
    main()
