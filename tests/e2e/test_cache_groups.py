"""A long sequence of a model of which most layers have a sliding window, on real workers."""

from contextlib import aclosing
from pathlib import Path

import pytest
from transformers import Gemma3TextConfig

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.requests import Request, SamplingParams, StopParams
from tests.fakes.running_replica import running_replica
from tests.fakes.tiny_families import SIZES, write_checkpoint
from tests.fakes.transformers_reference import ReferenceText, TransformersReference, near_ties

WINDOW, BLOCK_SIZE = 512, 16
NUM_WINDOW_TABLES = 5
TOTAL = 4000
NUM_TOKENS = 12
NUM_BLOCKS = 800
PROMPT = tuple(7 * position % 251 for position in range(TOTAL - NUM_TOKENS))
HELD = TOTAL // BLOCK_SIZE + NUM_WINDOW_TABLES * (WINDOW // BLOCK_SIZE + 1)
"""From the first token on: all blocks for the layer that sees everything, 33 for each table of the others."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReferenceText]:
    """Gemma 3 with one layer of six that sees everything, and what `transformers` says of the prompt."""
    config = Gemma3TextConfig(
        **SIZES
        | {"num_hidden_layers": 6, "max_position_embeddings": 4096}
        | {"head_dim": 32, "query_pre_attn_scalar": 16, "sliding_window": WINDOW}
    )
    assert config.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    folder = write_checkpoint(tmp_path_factory.mktemp("gemma3") / "model", config)
    return folder, TransformersReference(folder).greedy(PROMPT, NUM_TOKENS)


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(ClusterConfig(executor="uniproc", device="cpu"), id="uniproc"),
        pytest.param(ClusterConfig(executor="local", pp=2, device="cpu"), id="local pp 2"),
    ],
)
async def test_windows_hold_only_their_blocks(
    model: tuple[Path, ReferenceText], cluster: ClusterConfig
):
    """4,000 tokens are those of the reference, also from the cache, and hold no block for nothing."""
    folder, reference = model
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32", max_model_len=4096),
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS),
        schedule=ScheduleConfig(max_num_batched_tokens=256, max_num_seqs=4, check_state_every=1),
        cluster=cluster,
    )
    async with running_replica(config) as replica:
        for turn in range(2):
            request = Request(
                request_id=str(turn),
                prompt_token_ids=PROMPT,
                sampling=SamplingParams(temperature=0.0),
                stopping=StopParams(max_tokens=NUM_TOKENS, ignore_eos=True),
            )
            token_ids: list[int] = []
            most_held = 0
            async with aclosing(replica.loop.submit(request)) as stream:
                async for delta in stream:
                    status = replica.status("gemma3")
                    most_held = max(most_held, status.num_blocks - status.num_free_blocks)
                    token_ids += delta.token_ids
            near_ties(str(turn), token_ids, reference)
            assert most_held == HELD
        status = replica.status("gemma3")
        assert status.num_cached_tokens == (len(PROMPT) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert status.num_free_blocks == status.num_blocks == NUM_BLOCKS - 1
        assert status.num_state_drifts == 0
