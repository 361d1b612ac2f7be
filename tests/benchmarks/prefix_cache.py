"""What does the prefix cache spare? 32 prompts that share 1,000 tokens, with it and without.

The first request is done before the others come, all at once. Computed tokens are those the worker
counted. Run as `python -m tests.benchmarks.prefix_cache` from the repository's root; without the
cache it takes minutes.
"""

import asyncio
import random
import time

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.replica import Replica
from tests.benchmarks.load import VOCAB_SIZE
from tests.benchmarks.report import Row, report
from tests.fakes.running_replica import generate, running_replica

NUM_REQUESTS = 32
SHARED_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 1000, 16, 8
DTYPE = "float32"
"""In bfloat16 a token may flip where two logits are close, with or without the cache."""
SETTLED_SECONDS = 1.0
"""Workers say several times a second what they have computed."""


def _prompts() -> list[list[int]]:
    draw = random.Random(1)
    shared = [draw.randrange(VOCAB_SIZE) for _ in range(SHARED_TOKENS)]
    return [
        shared + [draw.randrange(VOCAB_SIZE) for _ in range(OWN_TOKENS)]
        for _ in range(NUM_REQUESTS)
    ]


async def serve(*, prefix_cache: bool) -> tuple[Row, list[tuple[int, ...]]]:
    """Run all requests; what it took, and their tokens."""
    config = CoordinatorConfig(
        model=ModelConfig(
            model=str(resolve_model("smollm2-135m", cache=cache_folder())),
            dtype=DTYPE,
            max_model_len=2048,
        ),
        cache=CacheConfig(prefix_cache=prefix_cache),
        cluster=ClusterConfig(executor="local", device="cpu"),
    )
    first, *others = _prompts()
    async with running_replica(config) as replica:
        before = await _settled(replica)
        texts = await generate(replica, [first], num_tokens=OUTPUT_TOKENS)
        started = time.monotonic()
        texts += await generate(replica, others, num_tokens=OUTPUT_TOKENS)
        seconds = time.monotonic() - started
        after = await _settled(replica)
    computed = after.workers[0].num_prefill_tokens - before.workers[0].num_prefill_tokens
    row: Row = {
        "prefix cache": "on" if prefix_cache else "off",
        "prompt tokens": after.num_prompt_tokens,
        "computed by the worker": computed,
        "hit ratio": after.prefix_hit_ratio,
        "seconds for the other 31": seconds,
    }
    return row, texts


async def _settled(replica: Replica) -> ClusterStatus:
    """The status once it holds what the worker said last."""
    await asyncio.sleep(SETTLED_SECONDS)
    return replica.status("smollm2-135m")


def main() -> None:
    """Measure both."""
    on, texts = asyncio.run(serve(prefix_cache=True))
    off, expected = asyncio.run(serve(prefix_cache=False))
    computed = int(on["computed by the worker"]) / int(off["computed by the worker"])
    num_equal = sum(text == other for text, other in zip(texts, expected, strict=True))
    for row in (off, on):
        row["computed ÷ off"] = computed if row is on else 1.0
        row["equal outputs"] = num_equal
    report(f"{NUM_REQUESTS} prompts that share {SHARED_TOKENS} tokens, {DTYPE}", [off, on])


if __name__ == "__main__":
    main()
