"""What does a decode step take, and what could it take? Beside the linear layers alone and memory speed.

Run as `python -m tests.benchmarks.decode_step` from the repository's root.
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.linear_ceiling import LinearLayers, read_gigabytes_per_second
from tests.benchmarks.lockstep import StepTime, lockstep
from tests.benchmarks.report import Row, report

NUM_ROWS = (1, 8, 32)
PROMPT_LEN, NUM_TOKENS = 128, 64
ROUNDS = 3


def main() -> None:
    """Measure the steps of a `local` worker, then the ceilings in a process that has the cores alone."""
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    times = asyncio.run(decode_steps(decoding_config(folder), rounds=ROUNDS))
    linear = LinearLayers(folder, num_threads=os.cpu_count() or 1)
    bandwidth = read_gigabytes_per_second(num_threads=os.cpu_count() or 1)
    rows: list[Row] = []
    for num_rows, found in zip(NUM_ROWS, times, strict=True):
        compute_ms = statistics.median(time.compute_ms for time in found)
        whole_ms = statistics.median(time.whole_ms for time in found)
        linear_ms = linear.milliseconds(num_rows)
        rows.append(
            {
                "rows": num_rows,
                "step ms": whole_ms,
                "worker ms": compute_ms,
                "linear ms": linear_ms,
                "not linear": 1 - linear_ms / compute_ms,
                "weights MB": linear.num_bytes / 1e6,
                "read once ms": linear.num_bytes / bandwidth / 1e6,
                "memory GB/s": bandwidth,
            }
        )
    report(f"decode steps in bf16 after {PROMPT_LEN} tokens in, SmolLM2-135M", rows)


def decoding_config(folder: Path, *, executor: str = "local") -> CoordinatorConfig:
    """One worker with all cores, and room for the prompts of all rows in one step."""
    return CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="bfloat16", max_model_len=2048),
        cache=CacheConfig(kv_cache_bytes=1 << 29),
        schedule=ScheduleConfig(max_num_batched_tokens=max(NUM_ROWS) * PROMPT_LEN),
        cluster=ClusterConfig(executor=executor, device="cpu"),
    )


async def decode_steps(config: CoordinatorConfig, *, rounds: int) -> Sequence[list[StepTime]]:
    """Steps by number of rows, of all rounds together; a first round warms up."""
    times: Sequence[list[StepTime]] = [[] for _ in NUM_ROWS]
    async with lockstep(config) as steps:
        for seed in range(rounds + 1):
            for num_rows, found in zip(NUM_ROWS, times, strict=True):
                measured = await steps.decode(
                    num_rows=num_rows, prompt_len=PROMPT_LEN, num_tokens=NUM_TOKENS, seed=seed
                )
                if seed > 0:
                    found += measured
    return times


if __name__ == "__main__":
    main()
