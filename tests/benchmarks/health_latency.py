"""How fast is health answered while a long prefill runs? Round trips of the RPC, per executor.

Run as `python -m tests.benchmarks.health_latency` from the repository's root.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.config_loader import cache_folder
from common.health import INFERENCE, LIVENESS, WORKER
from common.model_folder import resolve_model
from coordinator.client import AsyncClient
from tests.benchmarks.load import VOCAB_SIZE
from tests.benchmarks.report import Row, report
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.worker_process import worker_processes

PROMPT_TOKENS = 2000
PAUSE_SECONDS = 0.02
SETTINGS = {
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "kv_cache_bytes": 1 << 29,
    "threads": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A name to ask for at an address; `process` is how the report calls the place."""

    process: str
    address: str
    service: str


def main() -> None:
    """Measure every executor, one after the other."""
    folder = str(resolve_model("smollm2-135m", cache=cache_folder()))
    rows: list[Row] = []
    for executor in ("uniproc", "local", "remote"):
        with serving(executor, folder) as running:
            rows += asyncio.run(probe_during_prefill(executor, running))
    report(f"health while {PROMPT_TOKENS} tokens are computed in one step, SmolLM2-135M", rows)


@contextmanager
def serving(executor: str, folder: str) -> Iterator[RunningCoordinator]:
    """A coordinator with its worker in process, or with two stages in processes of their own."""
    flags = SETTINGS | {"model": folder, "executor": executor}
    with ExitStack() as stack:
        if executor == "local":
            flags |= {"pp": 2}
        elif executor == "remote":
            workers = stack.enter_context(worker_processes(2))
            flags |= {"workers": ",".join(worker.address for worker in workers)}
        yield stack.enter_context(running_coordinator(flags))


async def probe_during_prefill(executor: str, running: RunningCoordinator) -> list[Row]:
    """Send one long prompt, and ask every target in turns until its one token is there."""
    draw = random.Random(0)
    prompt = [draw.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)]
    seconds_by_target: dict[Target, list[float]] = {target: [] for target in _targets(running)}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(running.grpc_address))
        stubs = {
            target: health_pb2_grpc.HealthStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(target.address))
            )
            for target in seconds_by_target
        }
        for target, stub in stubs.items():
            await _round_trip(target, stub)
        started = time.monotonic()
        answer = asyncio.create_task(client.complete(prompt, max_tokens=1))
        while not (await asyncio.wait({answer}, timeout=PAUSE_SECONDS))[0]:
            for target, stub in stubs.items():
                seconds_by_target[target].append(await _round_trip(target, stub))
        prefill_s = time.monotonic() - started
        await answer
    return [
        _row(executor, target, seconds, prefill_s=prefill_s)
        for target, seconds in seconds_by_target.items()
    ]


def _targets(running: RunningCoordinator) -> list[Target]:
    coordinator = [
        Target(process="coordinator", address=running.grpc_address, service=service)
        for service in (LIVENESS, INFERENCE)
    ]
    workers = [
        Target(process=str(worker.rank), address=worker.address, service=service)
        for worker in running.client.status().workers
        if worker.address
        for service in (LIVENESS, WORKER)
    ]
    return coordinator + workers


async def _round_trip(target: Target, stub: health_pb2_grpc.HealthStub) -> float:
    started = time.monotonic()
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=target.service))
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise RuntimeError(f"{target} does not serve")
    return time.monotonic() - started


def _row(executor: str, target: Target, seconds: list[float], *, prefill_s: float) -> Row:
    return {
        "executor": executor,
        "process": target.process,
        "service": target.service or '""',
        "prefill s": prefill_s,
        "checks": len(seconds),
        "p50 ms": statistics.median(seconds) * 1e3,
        "max ms": max(seconds) * 1e3,
    }


if __name__ == "__main__":
    main()
