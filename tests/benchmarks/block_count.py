"""Does a step slow down with the size of the cache? Decodes of one row with 500 and with 8,000 blocks.

Run as `python -m tests.benchmarks.block_count` from the repository's root.
"""

import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from common.config import CacheConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from tests.benchmarks.decode_step import NUM_TOKENS, PROMPT_LEN, decoding_config
from tests.benchmarks.lockstep import StepTime, lockstep
from tests.benchmarks.report import Row, report

NUM_BLOCKS = (500, 8000)
CACHE_BYTES = 4 << 30
ROUNDS = 5


def main() -> None:
    """Measure both in turns."""
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    found = asyncio.run(take_turns(folder))
    medians = [[statistics.median(t.whole_ms for t in times) for times in r] for r in found]
    rows: list[Row] = [
        {
            "blocks": num_blocks,
            "step p50 ms": statistics.median(own),
            "÷ 500 blocks": statistics.median(
                mine / least for mine, least in zip(own, medians[0], strict=True)
            ),
        }
        for num_blocks, own in zip(NUM_BLOCKS, medians, strict=True)
    ]
    report("decode step of one row in bf16, SmolLM2-135M", rows)


async def take_turns(folder: Path) -> list[list[list[StepTime]]]:
    """Steps by number of blocks, by round; both workers stay loaded."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                lockstep(
                    replace(
                        decoding_config(folder),
                        cache=CacheConfig(kv_cache_bytes=CACHE_BYTES, num_blocks=num_blocks),
                    )
                )
            )
            for num_blocks in NUM_BLOCKS
        ]
        found: list[list[list[StepTime]]] = [[] for _ in workers]
        for seed in range(ROUNDS + 1):
            for steps, rounds in zip(workers, found, strict=True):
                times = await steps.decode(
                    num_rows=1, prompt_len=PROMPT_LEN, num_tokens=NUM_TOKENS, seed=seed
                )
                if seed > 0:
                    rounds.append(times)
    return found


if __name__ == "__main__":
    main()
