"""Gemma 3 270M for real: the tokens of `transformers` in float32, on every path.

Not part of `make test`, as its import takes minutes: `pytest -s -m soak tests/soak/test_gemma_270m.py`.
"""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.config_loader import cache_folder
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.transformers_reference import ReferenceText, TransformersReference, near_ties
from worker_service.model_import.importer import import_model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

NUM_TOKENS = 24
PREEMPTED = "whole prompts, preempted"
"""Blocks suffice for the four shorter ones as they come, and not for what they grow to."""
BOS = 2
LONG = "The history of the lighthouse begins with a fire on a hill, seen by those who came by sea. "


@pytest.fixture(scope="module")
def folder() -> Path:
    """The bundled model in float32."""
    return import_model("gemma3-270m", cache=cache_folder(), dtype="float32")


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    """Short ones, two that begin alike, and one beyond the window of 512 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["The capital of France is", "def fibonacci(n):", LONG * 4, LONG * 4 + "But", LONG * 40]
    made = [tokenizer(text).input_ids for text in texts]
    assert len(made[-1]) > 600
    assert {prompt[0] for prompt in made} == {BOS}
    return made


@pytest.fixture(scope="module")
def references(folder: Path, prompts: list[list[int]]) -> list[ReferenceText]:
    """What `transformers` says."""
    reference = TransformersReference(folder)
    return [reference.greedy(prompt, NUM_TOKENS) for prompt in prompts]


@pytest.mark.parametrize(
    ("path", "tokens", "num_blocks", "pp"),
    [
        (PREEMPTED, 1024, 104, 1),
        ("chunks behind a cached prefix", 64, 2000, 1),
        ("two stages", 64, 2000, 2),
    ],
)
async def test_tokens_equal_the_reference(
    folder: Path,
    prompts: list[list[int]],
    references: list[ReferenceText],
    path: str,
    tokens: int,
    num_blocks: int,
    pp: int,
):
    """Token by token, near-ties excused by the reference's gap and listed."""
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32", max_model_len=1024),
        cache=CacheConfig(block_size=16, num_blocks=num_blocks),
        schedule=ScheduleConfig(max_num_batched_tokens=tokens, max_num_seqs=4, check_state_every=1),
        cluster=ClusterConfig(executor="uniproc" if pp == 1 else "local", pp=pp, device="cpu"),
    )
    if path == PREEMPTED:
        prompts, references = prompts[:-1], references[:-1]
    async with running_replica(config) as replica:
        texts = await generate(replica, prompts, num_tokens=NUM_TOKENS, concurrency=4)
        again = await generate(replica, prompts, num_tokens=NUM_TOKENS, concurrency=4)
        status = replica.status("gemma3-270m")
        print(f"{path}: {replica.num_preemptions} preemptions, {status.num_cached_tokens} cached")  # noqa: T201
        assert status.num_state_drifts == 0
        assert status.num_cached_tokens > 0
        assert (replica.num_preemptions > 0) == (path == PREEMPTED)
    for number, reference in enumerate(references):
        for text in (texts[number], again[number]):
            for line in near_ties(f"{path}, prompt {number}", text, reference):
                print(line)  # noqa: T201 - shown beside the test's result
