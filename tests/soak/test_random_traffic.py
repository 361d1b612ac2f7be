"""Random traffic on two real workers for a long time: no drift, and everything back to its number.

The coordinator runs in this process, so that its tasks can be counted; clients reach it over gRPC.
`--soak-seconds` says how long; memory slopes are printed (`pytest -s -m soak tests/soak`).
"""

import asyncio
import gc
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from common.clock import SystemClock
from common.config import (
    CacheConfig,
    ClusterConfig,
    CoordinatorConfig,
    ModelConfig,
    ScheduleConfig,
    ServeConfig,
)
from common.errors import Unavailable
from common.speculation import SpeculationConfig
from common.tasks import TaskSupervisor
from coordinator.app import Coordinator
from coordinator.client import AsyncClient
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.shutdown import ShutdownRequest
from tests.fakes.cutting_proxy import cutting_proxy
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess, worker_processes

CHECK_STATE_EVERY = 50
NUM_USERS = 6
SAMPLE_EVERY_S = 2.0
POLL_S = 0.05
SETTLED_S = 3.0
"""Connections whose other end is gone are closed a while later."""
PATIENCE_S = 30.0
STEMS = ([], [1] * 40, [2] * 60)
"""Beginnings that prompts have in common, so that blocks are shared, and evicted since they are few."""
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
    }
)
POOL_THREADS = 4
"""By so many the thread pools of asyncio and gRPC may grow; a leak would be one a request."""
KIB = 1024


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the users did."""

    finished: int = 0
    aborted: int = 0
    left: int = 0
    disconnected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What processes hold while nobody asks: sockets and threads by process, tasks of this one."""

    sockets: tuple[int, ...]
    threads: tuple[int, ...]
    num_tasks: int


@dataclass(slots=True, kw_only=True)
class Memory:
    """Resident bytes of each process over time."""

    seconds: list[float] = field(default_factory=list)
    bytes_by_process: list[tuple[int, ...]] = field(default_factory=list)

    def slopes(self) -> list[float]:
        """KiB a minute of each process, over the second half of the samples."""
        half = len(self.seconds) // 2
        fits = np.polyfit(self.seconds[half:], np.array(self.bytes_by_process[half:]), 1)
        return [float(slope) * 60 / KIB for slope in fits[0]]


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long the traffic lasts."""
    return request.config.getoption("--soak-seconds")


def settings(model: Path, workers: list[WorkerProcess]) -> CoordinatorConfig:
    """So few blocks that sequences are preempted, drafts, and a comparison of the books every 50 steps."""
    return CoordinatorConfig(
        model=ModelConfig(model=str(model), max_model_len=512),
        cache=CacheConfig(num_blocks=48, kv_cache_bytes=4 << 20),
        schedule=ScheduleConfig(
            max_num_seqs=4, max_num_batched_tokens=64, check_state_every=CHECK_STATE_EVERY
        ),
        speculation=SpeculationConfig(speculative_method="ngram"),
        cluster=ClusterConfig(workers=tuple(worker.address for worker in workers)),
        serve=ServeConfig(grpc_port=0, http_port=-1),
    )


@asynccontextmanager
async def serving(config: CoordinatorConfig) -> AsyncIterator[str]:
    """The gRPC address of a coordinator in this process."""
    shutdown, is_ready = ShutdownRequest(), asyncio.Event()
    async with TaskSupervisor() as tasks:
        coordinator = Coordinator(config, tasks, clock=SystemClock())
        run = tasks.start(
            "coordinator", coordinator.serve_until(shutdown, lambda _: is_ready.set())
        )
        await is_ready.wait()
        yield coordinator.front.grpc_address
        shutdown.ask()
        await run


async def one_request(
    address: str, client: AsyncClient, draw: random.Random, tally: Tally, *, request_id: str
) -> None:
    """Ask for something random and read it, abort it, leave it, or vanish with the connection."""
    prompt = draw.choice(STEMS) + [draw.randrange(256) for _ in range(draw.randint(1, 300))]
    if draw.random() < 0.3:
        prompt = (prompt[-20:] * 9)[: draw.randint(21, 180)]  # repeats, so that drafts are found
    options = random_rules(draw) | {
        "request_id": request_id,
        "max_tokens": draw.randint(1, 150),
        "temperature": draw.choice([0.0, 1.0]),
        "seed": draw.getrandbits(32),
        "ignore_eos": True,
    }
    # What repeats the grammar's limits may be shorter than asked for.
    options["min_tokens"] = min(options.get("min_tokens", 0), options["max_tokens"])
    manner = draw.choice(["finish", "finish", "abort", "leave", "disconnect"])
    num_deltas = draw.randint(0, 20)
    if manner == "disconnect":
        await read_until_cut(address, prompt, options, seconds=draw.random() * 0.3)
        tally.disconnected += 1
    elif manner == "finish":
        await read(client, prompt, options)
        tally.finished += 1
    elif manner == "leave":
        await read(client, prompt, options, num_deltas=num_deltas)
        tally.left += 1
    else:
        reading = asyncio.create_task(read(client, prompt, options))
        await asyncio.sleep(draw.random() * 0.3)
        await client.abort(request_id)
        await reading
        tally.aborted += 1


def random_rules(draw: random.Random) -> dict[str, Any]:
    """Nothing beside, or several outputs, a grammar, penalties, or log-probabilities."""
    rules: list[dict[str, Any]] = [
        {},
        {"n": draw.randint(2, 3)},
        {"regex": "[a-f]{3,9}(, [a-f]{3,9})*"},
        {"json_schema": SCHEMA, "n": draw.randint(1, 2)},
        {"choice": ["yes", "no", "perhaps"]},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_tokens": draw.randint(0, 9)},
        {"logprobs": 2, "logit_bias": {65: 2.0, 66: -3.0}},
        {"prompt_logprobs": 1},
    ]
    return draw.choice(rules)


async def read_until_cut(address: str, prompt: list[int], options: dict, *, seconds: float) -> None:
    """Read over a connection of its own, which is reset after so long."""
    async with cutting_proxy(address) as proxy, AsyncClient(proxy.address) as client:
        reading = asyncio.create_task(read(client, prompt, options))
        await proxy.wait_until_connected()
        await asyncio.wait({reading}, timeout=seconds)
        proxy.cut()
        with suppress(Unavailable):
            await reading


async def read(
    client: AsyncClient, prompt: list[int], options: dict, *, num_deltas: int | None = None
) -> None:
    """Read an answer, to its end or only so many deltas of it."""
    count = 0
    async with aclosing(client.generate(prompt, **options)) as deltas:
        async for _ in deltas:
            count += 1
            if count == num_deltas or num_deltas == 0:
                return


async def user(address: str, client: AsyncClient, number: int, tally: Tally, until: float) -> None:
    """Ask one thing after the other."""
    draw, count = random.Random(number), 0
    while time.monotonic() < until:
        count += 1
        await one_request(address, client, draw, tally, request_id=f"{number}-{count}")


async def watch(processes: list[psutil.Process], memory: Memory, until: float) -> None:
    """Note the memory of each process every few seconds."""
    while time.monotonic() < until:
        memory.seconds.append(time.monotonic())
        memory.bytes_by_process.append(tuple(p.memory_info().rss for p in processes))
        await asyncio.sleep(SAMPLE_EVERY_S)


async def until(client: AsyncClient, holds: Callable[[ClusterStatus], bool]) -> ClusterStatus:
    """Ask for the status until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(status := await client.status()):  # noqa: ASYNC110 - it is another service
            await asyncio.sleep(POLL_S)
    return status


def is_idle(status: ClusterStatus) -> bool:
    """Nobody waits or runs, and every block is free."""
    return (
        status.num_waiting + status.num_running == 0 and status.num_free_blocks == status.num_blocks
    )


async def compare_books(client: AsyncClient) -> ClusterStatus:
    """Run requests until a comparison of the books has happened: workers know these handles alone."""
    done = (await client.status()).num_state_checks
    for number in range(2 * CHECK_STATE_EVERY):
        await client.complete([number], max_tokens=2, ignore_eos=True)
        if (status := await client.status()).num_state_checks > done:
            return status
    raise AssertionError("no step asked for the digests")


async def what_is_held(client: AsyncClient, processes: list[psutil.Process]) -> Held:
    """What stands when the service is idle, once it has not changed for SETTLED_S."""
    await until(client, is_idle)
    # A channel that was closed keeps its connection until it is collected.
    gc.collect()
    held, since = count_held(processes), time.monotonic()
    deadline = since + PATIENCE_S
    while time.monotonic() < min(deadline, since + SETTLED_S):
        await asyncio.sleep(POLL_S)
        if (now := count_held(processes)) != held:
            held, since = now, time.monotonic()
    return held


def count_held(processes: list[psutil.Process]) -> Held:
    """What stands this moment."""
    return Held(
        sockets=tuple(len(process.net_connections("tcp")) for process in processes),
        threads=tuple(process.num_threads() for process in processes),
        num_tasks=len(asyncio.all_tasks()),
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_random_traffic(tmp_path, soak_seconds):
    """Digests of the scheduler and both ranks agree; blocks, requests, sockets, tasks and threads return."""
    model = write_tiny_llama(tmp_path / "model", num_layers=2)
    with worker_processes(2) as workers:
        processes = [psutil.Process(), *(psutil.Process(w.process.pid) for w in workers)]
        async with serving(settings(model, workers)) as address, AsyncClient(address) as client:
            warm, tally, memory = Tally(), Tally(), Memory()
            # Pools of threads and arenas grow with the first traffic; from then on nothing may.
            await traffic(address, client, warm, min(10.0, soak_seconds / 4))
            before = await what_is_held(client, processes)
            now = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(watch(processes, memory, now + soak_seconds))
                await traffic(address, client, tally, soak_seconds)
            status = await compare_books(client)
            after = await what_is_held(client, processes)
    names = ["coordinator and clients", "worker 0", "worker 1"]
    slopes = dict(zip(names, memory.slopes(), strict=True))
    report = ", ".join(f"{name} {slope:+.0f}" for name, slope in slopes.items())
    print(f"\n{tally}\n{status.num_state_checks} comparisons; memory in KiB a minute: {report}")  # noqa: T201
    assert status.num_state_checks > 0
    assert (status.num_state_drifts, status.num_invalid_steps) == (0, 0)
    assert (status.generation, status.lost_generations) == (1, ())
    assert (after.sockets, after.num_tasks) == (before.sockets, before.num_tasks)
    growth = [now - then for now, then in zip(after.threads, before.threads, strict=True)]
    assert max(growth) <= POOL_THREADS


async def traffic(address: str, client: AsyncClient, tally: Tally, seconds: float) -> None:
    """All users at once, for so long."""
    end = time.monotonic() + seconds
    async with asyncio.TaskGroup() as users:
        for number in range(NUM_USERS):
            users.create_task(user(address, client, number, tally, end))
