"""The TCP connections between a coordinator and its workers are cut under load, and nobody notices.

Real worker processes, each behind a proxy that resets connections on cue.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.errors import Unavailable
from common.requests import Request, StopParams
from coordinator.engine.replica import Replica
from tests.fakes.cutting_proxy import CuttingProxy, cutting_proxy
from tests.fakes.running_replica import GREEDY, generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess, worker_processes

NUM_CUTS = 20
LONGEST_PAUSE = 0.1
"""Most seconds between a connection that stands again and the next cut."""

NUM_TOKENS = 48
PROMPTS = tuple(tuple(range(start, start + 5 + start % 7)) for start in range(40, 52))
CONCURRENCY = 6
LOST_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama of two layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=2)


def replica_config(model: Path, addresses: Sequence[str]) -> CoordinatorConfig:
    """A pipeline of workers at these addresses."""
    return CoordinatorConfig(
        model=ModelConfig(model=str(model), max_model_len=128),
        cache=CacheConfig(kv_cache_bytes=8 << 20),
        schedule=ScheduleConfig(max_num_seqs=4, max_num_batched_tokens=32),
        cluster=ClusterConfig(workers=tuple(addresses)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGroup:
    """A serving replica, its workers and the proxies before them, in stage order."""

    replica: Replica
    workers: list[WorkerProcess]
    proxies: list[CuttingProxy]


@pytest.fixture
async def group(model) -> AsyncIterator[CutGroup]:
    """Two workers behind proxies, serving."""
    async with AsyncExitStack() as stack:
        workers = stack.enter_context(worker_processes(2))
        proxies = [
            await stack.enter_async_context(cutting_proxy(worker.address)) for worker in workers
        ]
        config = replica_config(model, [proxy.address for proxy in proxies])
        replica = await stack.enter_async_context(running_replica(config))
        yield CutGroup(replica=replica, workers=workers, proxies=proxies)


async def load_until(is_over: asyncio.Event, replica: Replica) -> list[list[tuple[int, ...]]]:
    """Send the prompts round after round; the tokens of each round."""
    rounds: list[list[tuple[int, ...]]] = []
    while not is_over.is_set():
        rounds.append(
            await generate(replica, PROMPTS, num_tokens=NUM_TOKENS, concurrency=CONCURRENCY)
        )
    return rounds


async def cut_at_random(proxies: Sequence[CuttingProxy], count: int) -> None:
    """So many cuts of one proxy or both, each at a random moment after the last one healed."""
    moments = random.Random(7)
    for _ in range(count):
        await asyncio.sleep(moments.uniform(0, LONGEST_PAUSE))
        chosen = moments.choice([proxies[:1], proxies[1:], proxies])
        for proxy in chosen:
            proxy.cut()
        for proxy in chosen:
            await proxy.wait_until_connected()


async def test_twenty_cuts_under_load_lose_and_double_no_token(group):
    """No request fails, and each gets exactly the tokens that it gets undisturbed."""
    undisturbed = await generate(group.replica, PROMPTS, num_tokens=NUM_TOKENS)
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(load_until(is_over, group.replica))
        await cut_at_random(group.proxies, NUM_CUTS)
        is_over.set()
    rounds = load.result()
    assert rounds
    assert all(tokens == undisturbed for tokens in rounds)
    assert sum(proxy.num_connections for proxy in group.proxies) >= 2 + NUM_CUTS
    assert group.replica.status("tiny").generation == 1


async def test_idle_stream_that_is_cut_serves_the_next_request(group):
    """A break without a step in flight is healed as well."""
    undisturbed = await generate(group.replica, PROMPTS, num_tokens=NUM_TOKENS)
    for proxy in group.proxies:
        proxy.cut()
    assert await generate(group.replica, PROMPTS, num_tokens=NUM_TOKENS) == undisturbed
    assert group.replica.status("tiny").generation == 1


async def test_worker_behind_a_proxy_that_closes_is_lost_after_the_window(group):
    """A killed worker whose port still takes connections costs the reconnect window, no more."""
    started = asyncio.Event()

    async def long_request() -> None:
        request = Request(
            request_id="long",
            prompt_token_ids=PROMPTS[0],
            sampling=GREEDY,
            stopping=StopParams(max_tokens=100, ignore_eos=True),
        )
        async with aclosing(group.replica.loop.submit(request)) as stream:
            async for _ in stream:
                started.set()

    running = asyncio.create_task(long_request())
    await started.wait()
    group.proxies[1].is_closing_new = True
    group.workers[1].process.kill()
    killed_at = time.monotonic()
    with pytest.raises(Unavailable, match=r"stage 1 .* lost: connection closed.* out of reach"):
        await running
    assert time.monotonic() - killed_at < LOST_WITHIN_S
