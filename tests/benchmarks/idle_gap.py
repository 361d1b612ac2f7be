"""How long do workers idle between two forwards? With asynchronous scheduling and without.

Run as `python -m tests.benchmarks.idle_gap` from the repository's root. A gap lies between the end
of a step's COMPUTE and the start of the next one's on the same worker, by the worker's own clock.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.load import VOCAB_SIZE, Load, median_ratio
from tests.benchmarks.recorded_engine import Interval, RecordedEngine, recorded_engine
from tests.benchmarks.report import Row, report
from tests.fakes.running_replica import generate

LOAD = Load(input_len=32, output_len=128, concurrency=8, num_requests=8)
ROUNDS = 5
NUM_CORES = 2


def gaps_ms(stages: Sequence[Sequence[Interval]]) -> list[float]:
    """Milliseconds between the steps of each stage, all stages together."""
    return [
        (start - end) / 1e6 for intervals in stages for (_, end), (start, _) in pairwise(intervals)
    ]


async def run_load(engine: RecordedEngine, *, seed: int) -> tuple[float, float]:
    """Run the load once: median gap in milliseconds, output tokens a second."""
    for intervals in engine.executor.computed:
        intervals.clear()
    prompts = LOAD.prompts(vocab_size=VOCAB_SIZE, seed=seed)
    started = time.monotonic()
    texts = await generate(
        engine, prompts, num_tokens=LOAD.output_len, concurrency=LOAD.concurrency
    )
    seconds = time.monotonic() - started
    return statistics.median(gaps_ms(engine.executor.computed)), sum(map(len, texts)) / seconds


async def compare(configs: Sequence[CoordinatorConfig]) -> list[list[tuple[float, float]]]:
    """What each configuration did in each round, taking turns; all stay loaded."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(recorded_engine(c)) for c in configs]
        for engine in engines:
            await run_load(engine, seed=0)
        found: list[list[tuple[float, float]]] = [[] for _ in configs]
        for round_ in range(1, ROUNDS + 1):
            for engine, of_config in zip(engines, found, strict=True):
                of_config.append(await run_load(engine, seed=round_))
    return found


def _config(folder: str, *, num_stages: int, is_async: bool) -> CoordinatorConfig:
    return CoordinatorConfig(
        model=ModelConfig(model=folder, max_model_len=2048),
        cache=CacheConfig(kv_cache_bytes=1 << 29),
        schedule=ScheduleConfig(async_scheduling=is_async, max_num_batched_tokens=256),
        cluster=ClusterConfig(
            executor="local", pp=num_stages, threads=NUM_CORES // num_stages, device="cpu"
        ),
    )


def main() -> None:
    """Measure both in turns, over one stage and over two."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    rows: list[Row] = []
    for num_stages in (1, 2):
        configs = [
            _config(folder, num_stages=num_stages, is_async=is_async) for is_async in (False, True)
        ]
        found = asyncio.run(compare(configs))
        for is_async, of_config in zip((False, True), found, strict=True):
            gaps, rates = zip(*of_config, strict=True)
            sync_gaps, sync_rates = zip(*found[0], strict=True)
            rows.append(
                {
                    "stages": num_stages,
                    "async": "yes" if is_async else "no",
                    "gap p50 ms": statistics.median(gaps),
                    "÷ without": median_ratio(gaps, sync_gaps),
                    "output tokens/s": statistics.median(rates),
                    "tokens/s ÷ without": median_ratio(rates, sync_rates),
                }
            )
    report(
        f"idle time between forwards, concurrency {LOAD.concurrency}, {LOAD.input_len} in / "
        f"{LOAD.output_len} out, SmolLM2-135M, local workers",
        rows,
    )


if __name__ == "__main__":
    main()
