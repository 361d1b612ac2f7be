"""What does the wire cost? One `local` worker over gRPC against the same worker in process.

Run as `python -m tests.benchmarks.wire_cost` from the repository's root.
"""

import asyncio
import statistics

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.load import Load, compare, median_ratio
from tests.benchmarks.report import Row, report

LOAD = Load(input_len=128, output_len=64, concurrency=8, num_requests=16)
ROUNDS = 5


def main() -> None:
    """Measure both in turns."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    kinds = ("uniproc", "local")
    configs = [
        CoordinatorConfig(
            model=ModelConfig(model=folder, max_model_len=2048),
            cache=CacheConfig(kv_cache_bytes=1 << 29),
            cluster=ClusterConfig(executor=kind, device="cpu"),
        )
        for kind in kinds
    ]
    rates = asyncio.run(compare(configs, LOAD, rounds=ROUNDS))
    rows: list[Row] = [
        {
            "executor": kind,
            "output tokens/s": statistics.median(found),
            "÷ uniproc": median_ratio(found, rates[0]),
        }
        for kind, found in zip(kinds, rates, strict=True)
    ]
    report("output tokens/s at concurrency 8, 128 in / 64 out, SmolLM2-135M", rows)


if __name__ == "__main__":
    main()
