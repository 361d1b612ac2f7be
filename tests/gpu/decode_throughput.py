"""Decode steps of a model of Llama 3.2 1B's shape with random weights, eagerly and from graphs."""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from tests.benchmarks.lockstep import lockstep
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.gpu.rows import TableRow, emit

PART = "decode throughput"
ONE_BILLION: dict[str, Any] = {
    "num_layers": 16,
    "hidden": 2048,
    "intermediate": 8192,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 128256,
}
SMALL: dict[str, Any] = {"num_layers": 1, "hidden": 32, "intermediate": 32, "vocab": 49152}
MODES = {"eager": "none", "graphs": "full"}


async def measure(
    config: CoordinatorConfig, *, name: str, num_rows: Sequence[int], prompt_len: int
) -> None:
    """A row for each batch size, from two rounds of which the first warms up."""
    async with lockstep(config) as steps:
        for rows in num_rows:
            times = [
                time
                for seed in range(2)
                for time in await steps.decode(
                    num_rows=rows, prompt_len=prompt_len, num_tokens=prompt_len // 2, seed=seed
                )
            ]
            step_ms = statistics.median(time.whole_ms for time in times[len(times) // 2 :])
            figures = {"step ms": step_ms, "tokens/s": rows * 1e3 / step_ms}
            emit(TableRow(part=PART, what=f"1B, bf16, {name}, batch {rows}", figures=figures))


def main() -> None:
    """Eagerly, then from graphs where the device has them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = SMALL if options.rehearse else ONE_BILLION
        model = write_tiny_llama(Path(folder, "model"), dtype=torch.bfloat16, **shape)
        config = CoordinatorConfig(
            model=ModelConfig(model=str(model), dtype="bfloat16", max_model_len=512),
            cache=CacheConfig(gpu_memory_utilization=0.6, kv_cache_bytes=1 << 24),
            schedule=ScheduleConfig(max_num_seqs=128, max_num_batched_tokens=4096),
            cluster=ClusterConfig(
                executor="local", device=options.device, attention_backend="triton"
            ),
        )
        if options.rehearse:
            schedule = ScheduleConfig(max_num_seqs=2, max_num_batched_tokens=8)
            config = replace(config, schedule=schedule)
        for name, mode in MODES.items():
            if name == "graphs" and options.device == "cpu":
                emit(TableRow(part=PART, what="1B, bf16, graphs", result="only on CUDA devices"))
                continue
            cluster = replace(config.cluster, cudagraph_mode=mode)
            chosen_config = replace(config, cluster=cluster)
            num_rows, prompt_len = ((1, 2), 4) if options.rehearse else ((1, 32, 128), 128)
            asyncio.run(measure(chosen_config, name=name, num_rows=num_rows, prompt_len=prompt_len))


if __name__ == "__main__":
    main()
