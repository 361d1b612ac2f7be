"""How long do workers idle between two forwards? With asynchronous scheduling and without.

Run as `python -m tests.benchmarks.idle_gap` from the repository's root. A gap lies between the end
of a step's COMPUTE and the start of the next one's on the same worker, by the worker's own clock.

A hand-over lies between the moment at which a stage is free and what it needs is computed elsewhere,
and the start of its COMPUTE: the way of hidden states, or of sampled tokens, and the preparation of
the step. As many cohorts as stages take turns, and each crosses every hand-over once in a round, so a
stage of equals idles for the mean of them between two forwards, however early steps are planned.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of the load: output tokens a second, and of each stage the medians in milliseconds."""

    tokens_per_second: float
    gaps_ms: tuple[float, ...]
    hand_overs_ms: tuple[float, ...]
    computes_ms: tuple[float, ...]


def median_gap_ms(intervals: Sequence[Interval]) -> float:
    """Milliseconds between two steps of a stage."""
    gaps = [start - end for (_, end), (start, _) in pairwise(intervals)]
    return statistics.median(gaps) / 1e6


def median_hand_over_ms(stages: Sequence[Sequence[Interval]], stage: int) -> float:
    """Milliseconds from when a stage could start a step to when it did.

    A later stage needs the step from the one before; the first needs the tokens that the last one
    sampled for the same cohort, which had its turn as many steps ago as there are stages.
    """
    own = stages[stage]
    lag = 0 if stage else len(stages)
    waits = [
        start - max(own[step - 1][1], stages[stage - 1][step - lag][1])
        for step, (start, _) in enumerate(own)
        if step >= len(stages)
    ]
    return statistics.median(waits) / 1e6


def median_compute_ms(intervals: Sequence[Interval]) -> float:
    """Milliseconds a stage computes for a step."""
    return statistics.median(end - start for start, end in intervals) / 1e6


async def run_load(engine: RecordedEngine, *, seed: int) -> Round:
    """Run the load once."""
    stages = engine.executor.computed
    for intervals in stages:
        intervals.clear()
    prompts = LOAD.prompts(vocab_size=VOCAB_SIZE, seed=seed)
    started = time.monotonic()
    texts = await generate(
        engine, prompts, num_tokens=LOAD.output_len, concurrency=LOAD.concurrency
    )
    seconds = time.monotonic() - started
    return Round(
        tokens_per_second=sum(map(len, texts)) / seconds,
        gaps_ms=tuple(map(median_gap_ms, stages)),
        hand_overs_ms=tuple(median_hand_over_ms(stages, stage) for stage in range(len(stages))),
        computes_ms=tuple(map(median_compute_ms, stages)),
    )


async def compare(configs: Sequence[CoordinatorConfig]) -> list[list[Round]]:
    """What each configuration did in each round, taking turns; all stay loaded."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(recorded_engine(c)) for c in configs]
        for engine in engines:
            await run_load(engine, seed=0)
        rounds: list[list[Round]] = [[] for _ in configs]
        for seed in range(1, ROUNDS + 1):
            for engine, of_config in zip(engines, rounds, strict=True):
                of_config.append(await run_load(engine, seed=seed))
    return rounds


def _config(folder: str, *, num_stages: int, is_async: bool) -> CoordinatorConfig:
    return CoordinatorConfig(
        model=ModelConfig(model=folder, max_model_len=2048),
        cache=CacheConfig(kv_cache_bytes=1 << 29),
        schedule=ScheduleConfig(async_scheduling=is_async, max_num_batched_tokens=256),
        cluster=ClusterConfig(
            executor="local", pp=num_stages, threads=NUM_CORES // num_stages, device="cpu"
        ),
    )


def _rows(num_stages: int, without: Sequence[Round], ahead: Sequence[Round]) -> Iterator[Row]:
    rates = [[each.tokens_per_second for each in rounds] for rounds in (ahead, without)]
    for stage in range(num_stages):
        gaps = [[each.gaps_ms[stage] for each in rounds] for rounds in (ahead, without)]
        yield {
            "stages": num_stages,
            "stage": stage,
            "gap ms without": statistics.median(gaps[1]),
            "gap ms with": statistics.median(gaps[0]),
            "with ÷ without": median_ratio(*gaps),
            "hand-over ms without": statistics.median(r.hand_overs_ms[stage] for r in without),
            "hand-over ms with": statistics.median(r.hand_overs_ms[stage] for r in ahead),
            "compute ms with": statistics.median(r.computes_ms[stage] for r in ahead),
            "tokens/s, with ÷ without": median_ratio(*rates),
        }


def main() -> None:
    """Measure both in turns, over one stage and over two."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    rows: list[Row] = []
    for num_stages in (1, 2):
        configs = [
            _config(folder, num_stages=num_stages, is_async=is_async) for is_async in (False, True)
        ]
        without, ahead = asyncio.run(compare(configs))
        rows += _rows(num_stages, without, ahead)
    report(
        f"idle time between forwards, median, with asynchronous scheduling and without; "
        f"concurrency {LOAD.concurrency}, {LOAD.input_len} in / {LOAD.output_len} out, "
        f"SmolLM2-135M, local workers",
        rows,
    )


if __name__ == "__main__":
    main()
