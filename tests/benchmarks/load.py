"""A fixed load on a replica: random prompts of one length, so many at once, output tokens a second."""

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from common.config import CoordinatorConfig
from coordinator.engine.replica import Replica
from tests.fakes.running_replica import generate, running_replica

VOCAB_SIZE = 49152
"""Of SmolLM2, the bundled model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """num_requests prompts of input_len tokens, output_len tokens each, `concurrency` at once."""

    input_len: int
    output_len: int
    concurrency: int
    num_requests: int

    def prompts(self, *, vocab_size: int, seed: int) -> list[list[int]]:
        """Prompts without common prefixes."""
        draw = random.Random(seed)
        return [
            [draw.randrange(vocab_size) for _ in range(self.input_len)]
            for _ in range(self.num_requests)
        ]


async def output_tokens_per_second(replica: Replica, load: Load, *, seed: int) -> float:
    """Run the load once."""
    prompts = load.prompts(vocab_size=VOCAB_SIZE, seed=seed)
    started = time.monotonic()
    texts = await generate(
        replica, prompts, num_tokens=load.output_len, concurrency=load.concurrency
    )
    return sum(map(len, texts)) / (time.monotonic() - started)


async def compare(
    configs: Sequence[CoordinatorConfig], load: Load, *, rounds: int
) -> list[list[float]]:
    """Output tokens a second of each configuration in each round, taking turns; all stay loaded."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(running_replica(c)) for c in configs]
        for replica in replicas:
            await output_tokens_per_second(replica, load, seed=0)
        rates: list[list[float]] = [[] for _ in configs]
        for round_ in range(1, rounds + 1):
            for replica, found in zip(replicas, rates, strict=True):
                found.append(await output_tokens_per_second(replica, load, seed=round_))
    return rates


def median_ratio(rates: Sequence[float], base: Sequence[float]) -> float:
    """Median over the rounds of rate ÷ base in the same round."""
    return statistics.median(rate / other for rate, other in zip(rates, base, strict=True))
