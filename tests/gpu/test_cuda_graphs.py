"""Graphs on a GPU: what is replayed answers as what runs eagerly."""

from pathlib import Path

import pytest
import torch

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from tests.fakes.running_replica import generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.transformers_reference import TransformersReference, near_ties

pytestmark = pytest.mark.gpu

NUM_TOKENS = 24
PROMPTS = [list(range(5, 5 + length)) for length in (1, 7, 30, 50, 90)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded checkpoint of two layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)


@pytest.mark.parametrize("mode", ["none", "piecewise", "full"])
async def test_tokens_equal_the_reference(model: Path, mode: str):
    """In float32, by Triton kernels, in each mode."""
    assert torch.cuda.is_available()
    config = CoordinatorConfig(
        model=ModelConfig(model=str(model), dtype="float32", max_model_len=128),
        cache=CacheConfig(block_size=16, num_blocks=64),
        schedule=ScheduleConfig(max_num_batched_tokens=32, max_num_seqs=4, check_state_every=1),
        cluster=ClusterConfig(
            executor="uniproc", device="cuda", attention_backend="triton", cudagraph_mode=mode
        ),
    )
    async with running_replica(config) as replica:
        texts = await generate(replica, PROMPTS, num_tokens=NUM_TOKENS)
        assert replica.status("tiny").num_state_drifts == 0
    reference = TransformersReference(model)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        near_ties(mode, text, reference.greedy(prompt, NUM_TOKENS))
