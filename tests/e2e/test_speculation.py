"""Same tokens with draft tokens as without, wherever the workers run and however steps are cut."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from common.requests import SamplingParams
from common.speculation import DRAFT_MODEL, NGRAM, SpeculationConfig
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.replica import Replica
from tests.fakes.running_replica import GREEDY, generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.truncated_model import write_truncated_model

NUM_TOKENS = 40
PROMPT_LENGTHS = (1, 2, 5, 16, 17, 40, 61, 90)
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
LOOKED_UP = SpeculationConfig(speculative_method=NGRAM, prompt_lookup_min=1)


def drafted_by(folder: Path) -> SpeculationConfig:
    """The draft model of a folder."""
    return SpeculationConfig(speculative_method=DRAFT_MODEL, draft_model=str(folder))


@asynccontextmanager
async def serving(
    folder: Path,
    placement: str,
    *,
    schedule: ScheduleConfig,
    speculation: SpeculationConfig,
    num_blocks: int | None = None,
) -> AsyncIterator[Replica]:
    """A replica of the folder's model in float32, in small blocks."""
    kind, _, stages = placement.partition(" pp ")
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32"),
        cache=CacheConfig(block_size=4, num_blocks=num_blocks),
        schedule=schedule,
        cluster=ClusterConfig(executor=kind, pp=int(stages or 1), device="cpu", threads=1),
        speculation=speculation,
    )
    async with running_replica(config) as replica:
        yield replica


def repetitive_prompts(vocab_size: int) -> list[list[int]]:
    """One seeded prompt of each length, that says the same thing again and again."""
    draw = random.Random(5)
    units = [[draw.randrange(vocab_size) for _ in range(1 + n // 3)] for n in PROMPT_LENGTHS]
    return [(unit * 3)[:length] for unit, length in zip(units, PROMPT_LENGTHS, strict=True)]


async def texts_of(replica: Replica, prompts: list[list[int]]) -> list[list[tuple[int, ...]]]:
    """Greedy tokens, those drawn at a temperature, and those of the last prompt again, and again."""
    return [
        await generate(replica, prompts, num_tokens=NUM_TOKENS),
        await generate(replica, prompts, num_tokens=NUM_TOKENS, sampling=DRAWN),
        await generate(replica, prompts[-1:] * 2, num_tokens=NUM_TOKENS, concurrency=1),
    ]


def check_books(status: ClusterStatus) -> None:
    """Drafts were accepted and rejected, and neither left a trace in the books."""
    assert 0 < status.num_accepted_tokens < status.num_draft_tokens
    assert sum(status.num_accepted_by_position) == status.num_accepted_tokens
    assert status.num_free_blocks == status.num_blocks
    assert status.num_state_drifts == 0 < status.num_state_checks


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded checkpoint of six layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), num_layers=6)


@pytest.fixture(scope="module")
def small(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its first half, which often says the same."""
    return write_truncated_model(tiny, tmp_path_factory.mktemp("small"), num_layers=3)


@pytest.fixture(scope="module")
def plain_texts() -> dict[str, list[list[tuple[int, ...]]]]:
    """Texts without drafts, made by the first test that needs them."""
    return {}


@pytest.mark.parametrize(
    ("placement", "is_async", "method"),
    [
        *product(("uniproc", "local pp 2"), (True, False), (NGRAM, DRAFT_MODEL)),
        ("local pp 3", True, NGRAM),
    ],
)
async def test_drafts_change_nothing(
    tiny: Path,
    small: Path,
    plain_texts: dict[str, list[list[tuple[int, ...]]]],
    placement: str,
    method: str,
    *,
    is_async: bool,
) -> None:
    """Chunked, preempted, with shared prefixes, greedy or drawn: the tokens of the plain run."""
    speculation = LOOKED_UP if method == NGRAM else drafted_by(small)
    prompts = repetitive_prompts(256)
    schedule = ScheduleConfig(
        max_num_batched_tokens=24, max_num_seqs=8, check_state_every=1, async_scheduling=is_async
    )
    if not plain_texts:
        async with serving(
            tiny, "uniproc", schedule=schedule, speculation=SpeculationConfig()
        ) as replica:
            plain_texts["plain"] = await texts_of(replica, prompts)
    async with serving(
        tiny, placement, schedule=schedule, speculation=speculation, num_blocks=45
    ) as replica:
        texts = await texts_of(replica, prompts)
        status = replica.status("tiny")
    assert texts == plain_texts["plain"]
    assert status.num_preemptions > 0
    assert status.num_cached_tokens > 0
    check_books(status)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, seed=7)])
async def test_a_model_that_drafts_for_itself_is_right(
    tiny: Path, sampling: SamplingParams
) -> None:
    """Nine of ten drafts and more are accepted, greedy or drawn: both models draw with one noise."""
    prompts = repetitive_prompts(256)
    schedule = ScheduleConfig(max_num_batched_tokens=24, max_num_seqs=8)
    async with serving(
        tiny, "uniproc", schedule=schedule, speculation=drafted_by(tiny), num_blocks=45
    ) as replica:
        await generate(replica, prompts, num_tokens=NUM_TOKENS, sampling=sampling)
        status = replica.status("tiny")
    assert status.num_preemptions > 0
    assert status.num_accepted_tokens >= 0.9 * status.num_draft_tokens > 100


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", [NGRAM, DRAFT_MODEL])
async def test_smollm2(smollm2: Path, tmp_path: Path, method: str) -> None:
    """On the real model as well, over two stages: the tokens of the plain run on one."""
    speculation = LOOKED_UP
    if method == DRAFT_MODEL:
        speculation = drafted_by(write_truncated_model(smollm2, tmp_path, num_layers=24))
    prompts = [[(7 * index) % 911 + 100 for index in range(length)] * 2 for length in (3, 17, 60)]
    schedule = ScheduleConfig(max_num_batched_tokens=64, check_state_every=1)
    texts = []
    for placement, proposing in (
        ("uniproc", SpeculationConfig()),
        ("local pp 2", speculation),
    ):
        async with serving(smollm2, placement, schedule=schedule, speculation=proposing) as replica:
            texts.append(await generate(replica, prompts, num_tokens=NUM_TOKENS))
            status = replica.status("smollm2")
    assert texts[0] == texts[1]
    assert 0 < status.num_accepted_tokens < status.num_draft_tokens
