"""What do quantized weights gain? Output tokens a second at concurrency 1 in bf16, int8 and int4.

Run as `python -m tests.benchmarks.quantization_speed` from the repository's root.
"""

import asyncio
import statistics

from common.config import QUANTIZATIONS, CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.load import Load, compare, median_ratio
from tests.benchmarks.report import Row, report

LOAD = Load(input_len=128, output_len=64, concurrency=1, num_requests=4)
ROUNDS = 5


def main() -> None:
    """Measure one form of the weights after the other, over and over."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    configs = [
        CoordinatorConfig(
            model=ModelConfig(
                model=folder, dtype="bfloat16", max_model_len=1024, quantization=form
            ),
            cache=CacheConfig(kv_cache_bytes=1 << 28),
            cluster=ClusterConfig(executor="local", device="cpu"),
        )
        for form in QUANTIZATIONS
    ]
    rates = asyncio.run(compare(configs, LOAD, rounds=ROUNDS))
    rows: list[Row] = [
        {
            "weights": "bf16" if config.model.quantization == "none" else config.model.quantization,
            "output tokens/s": statistics.median(found),
            "÷ bf16": median_ratio(found, rates[0]),
        }
        for config, found in zip(configs, rates, strict=True)
    ]
    report("output tokens/s at concurrency 1, 128 in / 64 out, SmolLM2-135M, local", rows)


if __name__ == "__main__":
    main()
