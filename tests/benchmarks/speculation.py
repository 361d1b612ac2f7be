"""What are draft tokens worth? Output tokens a second with them and without, one request at a time.

Run as `python -m tests.benchmarks.speculation` from the repository's root. The texts are compared as
well: they may part at a near-tie, since in bfloat16 a sum rounds otherwise beside other rows.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig
from common.config_loader import cache_folder
from common.model_folder import resolve_model
from common.speculation import DRAFT_MODEL, NGRAM, SpeculationConfig
from coordinator.engine.replica import Replica
from tests.benchmarks.load import VOCAB_SIZE, median_ratio
from tests.benchmarks.report import Row, report
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.truncated_model import write_truncated_model

ROUNDS = 5
PROMPT_LEN = 96
OUTPUT_LEN = 192
UNIT_LEN = 24
NUM_CORES = 2
NUM_DRAFTS = 4
NUM_LAYERS = (8, 24)
"""Layers of the draft models, of 30."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One answer: output tokens a second, and the tokens."""

    tokens_per_second: float
    text: tuple[int, ...]


def repetitive_prompt(seed: int) -> list[int]:
    """The same few tokens again and again, as in code or a table: the model goes on like that."""
    draw = random.Random(seed)
    unit = [draw.randrange(VOCAB_SIZE) for _ in range(UNIT_LEN)]
    return (unit * (PROMPT_LEN // UNIT_LEN + 1))[:PROMPT_LEN]


def varied_prompt(seed: int) -> list[int]:
    """Tokens that do not repeat."""
    draw = random.Random(seed)
    return [draw.randrange(VOCAB_SIZE) for _ in range(PROMPT_LEN)]


async def answer(replica: Replica, prompt: Sequence[int]) -> Round:
    """Answer one prompt, greedily."""
    started = time.monotonic()
    (text,) = await generate(replica, [prompt], num_tokens=OUTPUT_LEN)
    return Round(tokens_per_second=len(text) / (time.monotonic() - started), text=text)


def config(folder: str, speculation: SpeculationConfig) -> CoordinatorConfig:
    """One local worker on both cores, without a prefix cache: every round computes its prompt."""
    return CoordinatorConfig(
        model=ModelConfig(model=folder, max_model_len=2048),
        cache=CacheConfig(kv_cache_bytes=1 << 28, prefix_cache=False),
        cluster=ClusterConfig(executor="local", threads=NUM_CORES, device="cpu"),
        speculation=speculation,
    )


async def compare(folder: str, name: str, speculation: SpeculationConfig) -> list[Row]:
    """Rounds with drafts and without, taking turns; both workers stay loaded; `name` says who drafts."""
    async with AsyncExitStack() as stack:
        plain, drafting = [
            await stack.enter_async_context(running_replica(config(folder, each)))
            for each in (SpeculationConfig(), speculation)
        ]
        rows: list[Row] = []
        for kind, prompt_of in (("repetitive", repetitive_prompt), ("varied", varied_prompt)):
            before = drafting.status("")
            rounds: list[tuple[Round, Round]] = []
            for seed in range(ROUNDS + 1):
                prompt = prompt_of(seed)
                pair = await answer(plain, prompt), await answer(drafting, prompt)
                rounds += [pair] * (seed > 0)
            after = drafting.status("")
            num_drafts = after.num_draft_tokens - before.num_draft_tokens
            num_accepted = after.num_accepted_tokens - before.num_accepted_tokens
            rates = [
                [each.tokens_per_second for each in side] for side in zip(*rounds, strict=True)
            ]
            rows.append(
                {
                    "drafts from": name,
                    "prompt": kind,
                    "plain tokens/s": sorted(rates[0])[ROUNDS // 2],
                    "tokens/s": sorted(rates[1])[ROUNDS // 2],
                    "with ÷ plain": median_ratio(rates[1], rates[0]),
                    "acceptance": num_accepted / max(num_drafts, 1),
                    "same texts": all(one.text == other.text for one, other in rounds),
                }
            )
    return rows


def methods(model: Path, scratch: Path) -> dict[str, SpeculationConfig]:
    """Who drafts: the text itself, some of the model's first layers, and the model, always right."""
    looked_up = SpeculationConfig(speculative_method=NGRAM, num_speculative_tokens=NUM_DRAFTS)

    def drafted_by(folder: Path) -> SpeculationConfig:
        return replace(looked_up, speculative_method=DRAFT_MODEL, draft_model=str(folder))

    first_layers = {
        f"its first {count} layers": drafted_by(
            write_truncated_model(model, scratch / str(count), num_layers=count)
        )
        for count in NUM_LAYERS
    }
    return {"n-grams": looked_up} | first_layers | {"the model itself": drafted_by(model)}


async def compare_all(model: Path, scratch: Path) -> list[Row]:
    """The rows of each method, one after the other."""
    return [
        row
        for name, speculation in methods(model, scratch).items()
        for row in await compare(str(model), name, speculation)
    ]


def main() -> None:
    """Measure both kinds of prompts with each method."""
    model = resolve_model("smollm2-135m", cache=cache_folder())
    with TemporaryDirectory() as scratch:
        rows = asyncio.run(compare_all(model, Path(scratch)))
    report(
        f"draft tokens, one request at a time, {PROMPT_LEN} in / {OUTPUT_LEN} out, SmolLM2-135M, "
        f"bfloat16, one local worker, {NUM_CORES} threads, median of {ROUNDS} pairs in turns",
        rows,
    )


if __name__ == "__main__":
    main()
