"""Every family's tokens are those of `transformers` in float32, however steps and layers are cut."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
)
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_families import families, write_tiny_family
from tests.fakes.transformers_reference import (
    ReferenceText,
    TransformersReference,
    near_ties,
)
from tests.fakes.worker_process import worker_processes

NUM_TOKENS = 24
PROMPTS = [list(range(3, 3 + length)) for length in (1, 7, 40, 90, 89)]
"""The last one begins like the one before it."""
FEW_BLOCKS = {"mistral": 19, "gemma2": 47, "gemma3": 47}
"""Of families with windows, which need fewer where prompts come in chunks: too few for three sequences."""


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, ...]]:
    """Two workers, which load one family after the other."""
    with worker_processes(2) as workers:
        yield tuple(worker.address for worker in workers)


@pytest.fixture(scope="module", params=list(families()))
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[ReferenceText]]:
    """A family's name, a tiny checkpoint and what `transformers` says of the prompts."""
    folder = write_tiny_family(tmp_path_factory.mktemp(request.param) / "model", request.param)
    reference = TransformersReference(folder)
    return request.param, folder, [reference.greedy(prompt, NUM_TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize("placement", ["uniproc", "two stages"])
async def test_tokens_equal_the_reference(
    family: tuple[str, Path, list[ReferenceText]], addresses: tuple[str, ...], placement: str
) -> None:
    """Prompts that are preempted, whole but for windows; in two stages in chunks behind a cached prefix."""
    name, folder, references = family
    is_cut = placement == "two stages"
    few_blocks = FEW_BLOCKS.get(name, 45)
    cluster = (
        ClusterConfig(workers=addresses)
        if is_cut
        else ClusterConfig(executor="uniproc", device="cpu", threads=1)
    )
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32", max_model_len=128),
        cache=CacheConfig(block_size=4, num_blocks=160 if is_cut else few_blocks),
        schedule=ScheduleConfig(
            max_num_batched_tokens=16 if is_cut or name in FEW_BLOCKS else 512,
            max_num_seqs=4,
            check_state_every=1,
        ),
        cluster=cluster,
    )
    async with running_replica(config) as replica:
        texts = await generate(replica, PROMPTS, num_tokens=NUM_TOKENS, concurrency=4)
        status = replica.status("tiny")
        assert status.num_state_drifts == 0
        assert (status.num_cached_tokens if is_cut else replica.num_preemptions) > 0
    for text, reference in zip(texts, references, strict=True):
        for line in near_ties(placement, text, reference):
            print(line)  # noqa: T201 - shown by pytest beside the test's result
