"""Same tokens as `transformers` in float32, wherever the workers run and however steps are cut."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from common.requests import Request, SamplingParams, StopParams
from coordinator.engine.replica import Replica
from tests.fakes.running_replica import GREEDY, generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import (
    ReferenceText,
    TransformersReference,
    near_ties,
)
from tests.fakes.worker_process import worker_processes

PLACEMENTS = ("uniproc", "local pp 1", "local pp 2", "local pp 3", "remote pp 2")
DRAWN = SamplingParams(temperature=0.8, seed=7)

NUM_TINY_TOKENS = 24
TINY_PROMPT_LENGTHS = (1, 2, 5, 16, 17, 40, 61, 90)
NUM_REAL_TOKENS = 48
REAL_PROMPT_LENGTHS = (3, 5, 17, 33, 64, 100, 129, 200, 257, 400, 650, 900)


@contextmanager
def placed(placement: str) -> Iterator[ClusterConfig]:
    """The cluster configuration of a placement; remote workers run while it is used."""
    kind, _, stages = placement.partition(" pp ")
    if kind == "remote":
        with worker_processes(int(stages)) as workers:
            addresses = tuple(worker.address for worker in workers)
            yield ClusterConfig(executor="remote", workers=addresses)
    else:
        yield ClusterConfig(executor=kind, pp=int(stages or 1), device="cpu", threads=1)


@asynccontextmanager
async def serving(
    folder: Path, placement: str, *, cache: CacheConfig, schedule: ScheduleConfig
) -> AsyncIterator[Replica]:
    """A replica of the folder's model in float32."""
    with placed(placement) as cluster:
        config = CoordinatorConfig(
            model=ModelConfig(model=str(folder), dtype="float32"),
            cache=cache,
            schedule=schedule,
            cluster=cluster,
        )
        async with running_replica(config) as replica:
            yield replica


def compare(name: str, texts: list[tuple[int, ...]], references: list[ReferenceText]) -> None:
    """Hold every text against its reference and list the near-ties."""
    for index, (text, reference) in enumerate(zip(texts, references, strict=True)):
        for line in near_ties(f"{name}, prompt {index}", text, reference):
            print(line)  # noqa: T201 - shown by pytest beside the test's result


def random_prompts(lengths: tuple[int, ...], vocab_size: int) -> list[list[int]]:
    """One seeded prompt of each length."""
    draw = random.Random(5)
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded checkpoint of six layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), num_layers=6)


@pytest.fixture(scope="module")
def tiny_prompts() -> list[list[int]]:
    """Prompts of bytes, shorter and longer than blocks and step budgets."""
    return random_prompts(TINY_PROMPT_LENGTHS, 256)


@pytest.fixture(scope="module")
def tiny_references(tiny: Path, tiny_prompts: list[list[int]]) -> list[ReferenceText]:
    """What `transformers` says of them."""
    reference = TransformersReference(tiny)
    return [reference.greedy(prompt, NUM_TINY_TOKENS) for prompt in tiny_prompts]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("max_num_batched_tokens", [16, 512])
@pytest.mark.parametrize("block_size", [4, 16])
async def test_tiny_checkpoint(
    tiny: Path,
    tiny_prompts: list[list[int]],
    tiny_references: list[ReferenceText],
    placement: str,
    max_num_batched_tokens: int,
    block_size: int,
) -> None:
    """Chunked or whole, in small or large blocks, preempted and recomputed: the reference's tokens."""
    schedule = ScheduleConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=8)
    async with serving(
        tiny, placement, cache=cramped(block_size=block_size), schedule=schedule
    ) as replica:
        texts = await generate(replica, tiny_prompts, num_tokens=NUM_TINY_TOKENS)
        assert replica.num_preemptions > 0
    compare(placement, texts, tiny_references)


def cramped(*, block_size: int) -> CacheConfig:
    """Room for the longest sequence and half of the second: the others must give way."""
    return CacheConfig(block_size=block_size, num_blocks=1 + 176 // block_size)


@pytest.mark.parametrize("placement", ["uniproc", "local pp 2"])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 512])
async def test_tiny_checkpoint_without_async_scheduling(
    tiny: Path,
    tiny_prompts: list[list[int]],
    tiny_references: list[ReferenceText],
    placement: str,
    max_num_batched_tokens: int,
) -> None:
    """Whether or not steps are planned ahead of their tokens, these are the same; so are the books."""
    schedule = ScheduleConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=8,
        async_scheduling=False,
        check_state_every=1,
    )
    async with serving(tiny, placement, cache=cramped(block_size=4), schedule=schedule) as replica:
        texts = await generate(replica, tiny_prompts, num_tokens=NUM_TINY_TOKENS)
        assert replica.num_preemptions > 0
    compare(placement, texts, tiny_references)


async def read_until(
    replica: Replica,
    prompt: list[int],
    *,
    request_id: str,
    stop_token_ids: frozenset[int],
    most_tokens: int,
) -> tuple[int, ...]:
    """Greedy tokens up to a stop token, or up to where the reader leaves."""
    request = Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=GREEDY,
        stopping=StopParams(
            max_tokens=NUM_TINY_TOKENS, ignore_eos=True, stop_token_ids=stop_token_ids
        ),
    )
    tokens: list[int] = []
    async with aclosing(replica.loop.submit(request)) as stream:
        async for delta in stream:
            # Who reads late gets several tokens at once.
            tokens += delta.token_ids
            if len(tokens) >= most_tokens:
                break
    return tuple(tokens[:most_tokens])


@pytest.mark.parametrize("placement", ["uniproc", "local pp 2"])
async def test_late_ends_leave_no_trace(
    tiny: Path,
    tiny_prompts: list[list[int]],
    tiny_references: list[ReferenceText],
    placement: str,
) -> None:
    """Stopped by a token or left by their readers while a later step runs: all blocks come back.

    A third stops, a third is left, a third goes on in blocks that the others have given back.
    """
    schedule = ScheduleConfig(max_num_batched_tokens=64, max_num_seqs=4, check_state_every=1)
    references = [reference.token_ids for reference in tiny_references]
    async with serving(tiny, placement, cache=cramped(block_size=4), schedule=schedule) as replica:
        async with asyncio.TaskGroup() as tasks:
            reads = [
                tasks.create_task(
                    read_until(
                        replica,
                        tiny_prompts[index],
                        request_id=str(index),
                        stop_token_ids=frozenset(reference[index : index + (index % 3 == 0)]),
                        most_tokens=index if index % 3 == 1 else NUM_TINY_TOKENS,
                    )
                )
                for index, reference in enumerate(references)
            ]
        status = replica.status("tiny")
    for index, (read, reference) in enumerate(zip(reads, references, strict=True)):
        ends = {0: reference.index(reference[index]) + 1, 1: index, 2: NUM_TINY_TOKENS}
        assert read.result() == reference[: ends[index % 3]]
    assert status.num_free_blocks == status.num_blocks
    assert status.num_state_drifts == 0 < status.num_state_checks


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("placement", ["uniproc", "local pp 2"])
async def test_tiny_checkpoint_with_shared_prefixes(
    tiny: Path, placement: str, *, is_async: bool
) -> None:
    """Prompts that begin alike, again and again, with too few blocks to keep them: the same tokens."""
    draw = random.Random(9)
    stems = [[draw.randrange(256) for _ in range(length)] for length in (40, 61)]
    prompts = [
        stem + [draw.randrange(256) for _ in range(length)]
        for length in (1, 7, 18)
        for stem in stems
    ]
    reference = TransformersReference(tiny)
    references = [reference.greedy(prompt, NUM_TINY_TOKENS) for prompt in prompts]
    schedule = ScheduleConfig(
        max_num_batched_tokens=64, max_num_seqs=8, check_state_every=1, async_scheduling=is_async
    )
    async with serving(tiny, placement, cache=cramped(block_size=4), schedule=schedule) as replica:
        for round_ in range(3):
            texts = await generate(replica, prompts, num_tokens=NUM_TINY_TOKENS)
            compare(f"{placement}, round {round_}", texts, references)
        status = replica.status("tiny")
    assert status.num_preemptions > 0
    assert status.num_cached_tokens > 0
    assert status.num_state_drifts == 0 < status.num_state_checks


async def test_tiny_checkpoint_draws_the_same_everywhere(
    tiny: Path, tiny_prompts: list[list[int]]
) -> None:
    """With a seed and a temperature every placement draws the same tokens, and not the greedy ones."""
    schedule = ScheduleConfig(max_num_batched_tokens=64)
    drawn: dict[str, list[tuple[int, ...]]] = {}
    for placement in PLACEMENTS:
        async with serving(tiny, placement, cache=CacheConfig(), schedule=schedule) as replica:
            drawn[placement] = await generate(
                replica, tiny_prompts, num_tokens=NUM_TINY_TOKENS, sampling=DRAWN
            )
            greedy = await generate(
                replica, tiny_prompts, num_tokens=NUM_TINY_TOKENS, sampling=GREEDY
            )
            assert drawn[placement] != greedy
    assert all(texts == drawn["uniproc"] for texts in drawn.values())


@pytest.fixture(scope="module")
def real_prompts() -> list[list[int]]:
    """Prompts of 3 to 900 tokens in the real vocabulary."""
    return random_prompts(REAL_PROMPT_LENGTHS, 49152)


@pytest.fixture(scope="module")
def real_references(smollm2: Path, real_prompts: list[list[int]]) -> list[ReferenceText]:
    """What `transformers` says of them."""
    reference = TransformersReference(smollm2)
    return [reference.greedy(prompt, NUM_REAL_TOKENS) for prompt in real_prompts]


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("placement", ["uniproc", "local pp 2", "remote pp 2"])
async def test_smollm2(
    smollm2: Path,
    real_prompts: list[list[int]],
    real_references: list[ReferenceText],
    placement: str,
) -> None:
    """Twelve requests at once on the real model: the reference's tokens."""
    schedule = ScheduleConfig(max_num_batched_tokens=512)
    cache = CacheConfig(kv_cache_bytes=1 << 29)
    async with serving(smollm2, placement, cache=cache, schedule=schedule) as replica:
        texts = await generate(replica, real_prompts, num_tokens=NUM_REAL_TOKENS)
    compare(placement, texts, real_references)
