"""Two stages on one device over gRPC: greedy tokens equal to those of `transformers` on a CPU.

Float32 on both sides; a token may differ only at a near-tie, as in `tests.fakes.transformers_reference`.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import TransformersReference, near_ties
from tests.gpu.rows import TableRow, emit

LENGTHS = (1, 5, 30, 61)
SHARE = 0.3
"""Of the device's memory, for each of the two workers."""


async def serve(model: Path, device: str, num_tokens: int) -> list[tuple[int, ...]]:
    """Tokens after each prompt, from worker processes that are started and ended here."""
    config = CoordinatorConfig(
        model=ModelConfig(model=str(model), dtype="float32", max_model_len=128),
        cache=CacheConfig(num_blocks=64, gpu_memory_utilization=SHARE, kv_cache_bytes=1 << 24),
        schedule=ScheduleConfig(max_num_batched_tokens=32, max_num_seqs=4),
        cluster=ClusterConfig(
            executor="local", pp=2, devices=(device,) * 2, attention_backend="triton"
        ),
    )
    async with running_replica(config) as replica:
        prompts = [list(range(length)) for length in LENGTHS]
        return await generate(replica, prompts, num_tokens=num_tokens)


def main() -> None:
    """One row; a wrong token raises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    num_tokens = 3 if options.rehearse else 48
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_llama(
            Path(folder, "tiny"), num_layers=2 if options.rehearse else 6, seed=1
        )
        texts = asyncio.run(serve(model, options.device, num_tokens))
        reference = TransformersReference(model)
        ties: list[str] = []
        for length, text in zip(LENGTHS, texts, strict=True):
            expected = reference.greedy(list(range(length)), num_tokens)
            ties += near_ties(f"prompt of {length}", text, expected)
    figures = {"tokens": float(sum(map(len, texts))), "near-ties": float(len(ties))}
    emit(TableRow(part="same tokens", what="pp 2, triton, float32", figures=figures))


if __name__ == "__main__":
    main()
