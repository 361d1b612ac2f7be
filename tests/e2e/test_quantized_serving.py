"""Quantized weights behind a coordinator: same tokens wherever they are, other ones than without."""

import random
from pathlib import Path

import pytest

from common.config import (
    NO_QUANTIZATION,
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
)
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama

NUM_TOKENS = 24
PROMPT_LENGTHS = (1, 5, 17, 40)
WHOLE = ClusterConfig(executor="uniproc", device="cpu", threads=1)
STAGES = ClusterConfig(executor="local", pp=2, device="cpu", threads=1)


async def texts(folder: Path, form: str, cluster: ClusterConfig) -> list[tuple[int, ...]]:
    """What the model says after a seeded prompt of each length, in float32."""
    draw = random.Random(3)
    prompts = [[draw.randrange(256) for _ in range(length)] for length in PROMPT_LENGTHS]
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32", quantization=form),
        cache=CacheConfig(num_blocks=64),
        cluster=cluster,
    )
    async with running_replica(config) as replica:
        return await generate(replica, prompts, num_tokens=NUM_TOKENS)


@pytest.mark.parametrize("form", ["int8", "int4"])
async def test_stages_say_what_the_whole_model_says(tmp_path: Path, form: str):
    """Two processes with half of the layers each give one process' tokens, and not the plain ones."""
    folder = write_tiny_llama(tmp_path)
    spoken = await texts(folder, form, WHOLE)
    assert await texts(folder, form, STAGES) == spoken
    if form == "int4":
        assert spoken != await texts(folder, NO_QUANTIZATION, WHOLE), "the form reached the workers"
