"""Drafts beside grammars and edits of the logits: the tokens of the plain run, all of them allowed."""

import asyncio
from contextlib import aclosing
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
from common.speculation import NGRAM, SpeculationConfig
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.replica import Replica
from tests.fakes.byte_tokenizer import VOCAB_SIZE
from tests.fakes.counting_matcher import CountingMatcher
from tests.fakes.running_replica import running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama

NUM_TOKENS = 60
MODULUS = 16
PROMPTS = ((5, 6, 7) * 4, (9, 8) * 6, (1, 2, 3, 4, 5) * 2)
RULES = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.7, seed=3),
    "penalized": SamplingParams(temperature=0.0, repetition_penalty=1.05, presence_penalty=0.02),
}


async def answer(
    replica: Replica, rule: str, index: int, *, is_constrained: bool
) -> tuple[int, ...]:
    """The tokens after one prompt."""
    request = Request(
        request_id=f"{rule} {index} {is_constrained}",
        prompt_token_ids=PROMPTS[index],
        sampling=RULES[rule],
        stopping=StopParams(max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    matcher = CountingMatcher(vocab_size=VOCAB_SIZE, modulus=MODULUS) if is_constrained else None
    async with aclosing(replica.loop.submit(request, None, matcher)) as stream:
        return tuple([token async for delta in stream for token in delta.token_ids])


async def answers(
    folder: Path, *, num_stages: int, is_async: bool, speculation: SpeculationConfig
) -> tuple[list[tuple[int, ...]], ClusterStatus]:
    """Every prompt under every rule, with a grammar and without, all at once."""
    config = CoordinatorConfig(
        model=ModelConfig(model=str(folder), dtype="float32"),
        cache=CacheConfig(block_size=4, num_blocks=400),
        schedule=ScheduleConfig(
            max_num_batched_tokens=48, check_state_every=1, async_scheduling=is_async
        ),
        cluster=ClusterConfig(
            executor="uniproc" if num_stages == 1 else "local",
            pp=num_stages,
            device="cpu",
            threads=1,
        ),
        speculation=speculation,
    )
    async with running_replica(config) as replica, asyncio.TaskGroup() as tasks:
        texts = [
            tasks.create_task(answer(replica, rule, index, is_constrained=is_constrained))
            for rule in RULES
            for index in range(len(PROMPTS))
            for is_constrained in (True, False)
        ]
        await asyncio.gather(*texts)
        return [text.result() for text in texts], replica.status("tiny")


@pytest.mark.parametrize(("num_stages", "is_async"), [(1, True), (1, False), (2, True)])
async def test_drafts_keep_the_rules(tmp_path: Path, num_stages: int, *, is_async: bool) -> None:
    """Masks along the drafts, penalties of what each row has seen, and neighbours without any."""
    folder = write_tiny_llama(tmp_path / "model", num_layers=2)
    plain, _ = await answers(folder, num_stages=1, is_async=True, speculation=SpeculationConfig())
    looked_up, status = await answers(
        folder,
        num_stages=num_stages,
        is_async=is_async,
        speculation=SpeculationConfig(speculative_method=NGRAM, prompt_lookup_min=1),
    )
    assert looked_up == plain
    for text in looked_up[::2]:
        assert [token % MODULUS for token in text] == [n % MODULUS for n in range(NUM_TOKENS)]
    assert 0 < status.num_accepted_tokens < status.num_draft_tokens
    assert status.num_state_drifts == 0 < status.num_state_checks
