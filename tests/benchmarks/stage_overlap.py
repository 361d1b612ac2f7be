"""Do pipeline stages compute at the same time? Two real stages, by what their steps say of their time.

Run as `python -m tests.benchmarks.stage_overlap` from the repository's root. The stages must be on
one machine, whose monotonic clock they share.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.load import VOCAB_SIZE, Load
from tests.benchmarks.recorded_engine import Interval, recorded_engine
from tests.benchmarks.report import Row, report
from tests.fakes.running_replica import generate

LOAD = Load(input_len=512, output_len=16, concurrency=8, num_requests=16)
ROUNDS = 3
NUM_STAGES = 2


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
