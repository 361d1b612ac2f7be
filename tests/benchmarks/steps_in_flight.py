"""What do steps in flight gain? Two pipeline stages of one thread each, with 1 step and with 2.

Run as `python -m tests.benchmarks.steps_in_flight` from the repository's root.
"""

import asyncio
import statistics

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.load import Load, compare, median_ratio
from tests.benchmarks.report import Row, report

LOAD = Load(input_len=512, output_len=16, concurrency=8, num_requests=16)
ROUNDS = 3


def main() -> None:
    """Measure both in turns."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    depths = (1, 2)
    configs = [
        CoordinatorConfig(
            model=ModelConfig(model=folder, max_model_len=2048),
            cache=CacheConfig(kv_cache_bytes=1 << 29),
            schedule=ScheduleConfig(max_num_batched_tokens=512, max_steps_in_flight=depth),
            cluster=ClusterConfig(executor="local", pp=2, threads=1, device="cpu"),
        )
        for depth in depths
    ]
    rates = asyncio.run(compare(configs, LOAD, rounds=ROUNDS))
    rows: list[Row] = [
        {
            "steps in flight": depth,
            "output tokens/s": statistics.median(found),
            "÷ one step": median_ratio(found, rates[0]),
        }
        for depth, found in zip(depths, rates, strict=True)
    ]
    report("output tokens/s at concurrency 8, 512 in / 16 out, SmolLM2-135M, pp 2", rows)


if __name__ == "__main__":
    main()
