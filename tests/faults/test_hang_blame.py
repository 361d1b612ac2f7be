"""A rank of three that hangs is blamed, and not who waits for it; a rank that is slow is not blamed.

Real worker processes whose forward passes the test holds, under a coordinator that measures their
steps. Its floors are lower than the usual ones, so that nobody waits for ten seconds.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.errors import Unavailable
from common.requests import Request, StopParams
from coordinator.engine.replica import Replica
from coordinator.executors.deadlines import DeadlineRules
from coordinator.recovery.monitor import MAX_SILENCE
from tests.fakes.held_worker import HeldWorker, held_workers
from tests.fakes.running_replica import GREEDY, generate, running_replica
from tests.fakes.tiny_checkpoint import write_tiny_llama

FLOOR = 1.0
RULES = DeadlineRules(first_floor=FLOOR, floor=FLOOR, unusual_factor=10.0)
BLAMED_WITHIN_S = FLOOR + 1.5
"""The floor, two turns of the status interval, and a busy machine."""

SLOW = 2 * FLOOR
SHORT, LONG = (7, 8, 9), tuple(range(40, 130))
HANG_EXIT_CODE = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A serving replica and its workers in stage order."""

    replica: Replica
    workers: list[HeldWorker]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of three layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=3)


@pytest.fixture
async def group(model: Path, tmp_path: Path) -> AsyncIterator[HeldGroup]:
    """Three workers, serving."""
    async with AsyncExitStack() as stack:
        workers = stack.enter_context(held_workers(3, tmp_path))
        config = CoordinatorConfig(
            model=ModelConfig(model=str(model), max_model_len=512),
            cache=CacheConfig(kv_cache_bytes=8 << 20),
            schedule=ScheduleConfig(max_num_seqs=4, max_num_batched_tokens=128),
            cluster=ClusterConfig(workers=tuple(worker.address for worker in workers)),
        )
        replica = await stack.enter_async_context(running_replica(config, deadline_rules=RULES))
        yield HeldGroup(replica=replica, workers=workers)


async def answer_until_it_fails(replica: Replica, name: str, is_running: asyncio.Event) -> None:
    """Read a long answer; the event is set once it has decoded some tokens."""
    request = Request(
        request_id=name,
        prompt_token_ids=SHORT,
        sampling=GREEDY,
        stopping=StopParams(max_tokens=500, ignore_eos=True),
    )
    num_tokens = 0
    async with aclosing(replica.loop.submit(request)) as stream:
        async for delta in stream:
            num_tokens += len(delta.token_ids)
            if num_tokens > 8:
                is_running.set()


async def test_hanging_middle_rank_is_blamed(group):
    """Requests end in time, with rank and reason; the hung process leaves when it is fenced."""
    running = [asyncio.Event() for _ in range(3)]
    answers = [
        asyncio.create_task(answer_until_it_fails(group.replica, f"answer-{n}", is_running))
        for n, is_running in enumerate(running)
    ]
    await asyncio.gather(*(is_running.wait() for is_running in running))
    group.workers[1].hold()
    held_at = time.monotonic()
    errors = await asyncio.gather(*answers, return_exceptions=True)
    assert time.monotonic() - held_at < BLAMED_WITHIN_S
    for error in errors:
        assert isinstance(error, Unavailable)
        assert str(error).startswith(f"stage 1 ({group.workers[1].address}) lost: in COMPUTE of")
        assert str(error).endswith(f"its deadline is {FLOOR} s")
    causes = [worker.cause for worker in group.replica.status("tiny").workers]
    assert [bool(cause) for cause in causes] == [False, True, False]
    exit_code, _ = await asyncio.to_thread(group.workers[1].wait)
    assert exit_code == HANG_EXIT_CODE
    assert [worker.process.poll() for worker in group.workers] == [None, HANG_EXIT_CODE, None]


async def test_stopped_process_is_blamed_for_its_silence(group):
    """Its connections stand and its device thread says nothing: the silence of its event loop is told."""
    is_running = asyncio.Event()
    answer = asyncio.create_task(answer_until_it_fails(group.replica, "answer", is_running))
    await is_running.wait()
    group.workers[0].send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    with pytest.raises(
        Unavailable, match=r"^stage 0 .* lost: its event loop is silent for 2\.\d s"
    ):
        await answer
    assert time.monotonic() - stopped_at < MAX_SILENCE + 1.0


async def slow_prefill(group: HeldGroup, prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Generate one token with a prefill that is held for SLOW seconds in the middle rank."""
    next_step = group.replica.status("tiny").step + 1
    group.workers[1].hold(first_step=next_step, end_step=next_step + 1, seconds=SLOW)
    started_at = time.monotonic()
    tokens = await generate(group.replica, [prompt], num_tokens=1)
    assert time.monotonic() - started_at >= SLOW
    return tokens


async def test_slow_prefill_after_fast_decodes_is_no_hang(group):
    """The first step of a shape may take ten times as long, the next ones as long as that took."""
    await generate(group.replica, [SHORT], num_tokens=200)
    slow = [await slow_prefill(group, LONG) for _ in range(2)]
    group.workers[1].release()
    undisturbed = await generate(group.replica, [LONG], num_tokens=1)
    assert slow == [undisturbed, undisturbed]
    assert group.replica.status("tiny").generation == 1
