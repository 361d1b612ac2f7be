"""A device thread that does not come back: what the worker process says of itself, and when it leaves.

A step is held in real worker processes at the end of its forward pass, as a kernel that does not
return would hold it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire.v1 import worker_pb2

from common.codecs.worker_codec import decode_activity
from common.errors import ServiceError
from common.health import LIVENESS, WORKER, WORKER_STEPS
from common.step import ExecuteResult, SchedulerOutput
from common.worker_api import Authority, DevicePhase, ExecuteModel, Rank, WorkerActivity
from tests.fakes.held_worker import HeldWorker, held_workers
from tests.fakes.pipeline_driver import AUTHORITY, GENERATION, PipelineDriver
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_setup import begin_request

DEADLINE = 1.0
HANG_EXIT = 2.0
LATE = 1.0
"""Seconds by which a busy machine may be late."""

LONG = 60.0
PROMPT = (72, 101, 108, 108, 111)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NEWER_EPOCH = Authority(coordinator_id="a newer one", epoch=AUTHORITY.epoch + 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama of three layers."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=3))


class Client(UnaryWorker):
    """A connection to one worker that also asks for its health and activity."""

    async def run(
        self, output: SchedulerOutput, *, deadline: float | None = DEADLINE
    ) -> ExecuteResult:
        """Run an execute phase under a deadline."""
        return await self.execute_model(ExecuteModel(scheduler_output=output, deadline=deadline))

    async def health(self) -> list[int]:
        """The states of the process, the worker, and its steps."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        requests = [
            health_pb2.HealthCheckRequest(service=name) for name in (LIVENESS, WORKER, WORKER_STEPS)
        ]
        return [(await stub.Check(request, timeout=5)).status for request in requests]

    async def wait_for_health(self, status: int) -> float:
        """Wait until the worker has this state; returns when, on the monotonic clock."""
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(
            health_pb2.HealthCheckRequest(service=WORKER)
        )
        async with asyncio.timeout(LONG):
            while (await watch.read()).status != status:
                pass
        watch.cancel()
        return time.monotonic()

    async def activity(self) -> WorkerActivity:
        """What the worker is doing now."""
        watch = self.stub.WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=50))
        told = decode_activity(await watch.read())
        watch.cancel()
        return told


@asynccontextmanager
async def serving(
    workers: list[HeldWorker], model: str
) -> AsyncIterator[tuple[PipelineDriver, list[Client]]]:
    """The stages of a pipeline that serve, one connection each."""
    clients = [Client(worker.address) for worker in workers]
    driver = PipelineDriver(clients, model=model, num_layers=3)
    try:
        await driver.bring_up()
        yield driver, clients
    finally:
        for client in clients:
            await client.close()


@asynccontextmanager
async def stuck(client: Client, output: SchedulerOutput) -> AsyncIterator[float]:
    """A step that does not return, until the body has ended; yields when it was sent."""
    call = asyncio.ensure_future(client.run(output))
    sent_at = time.monotonic()
    await client.wait_for_health(NOT_SERVING)
    try:
        yield sent_at
    finally:
        call.cancel()
        with suppress(asyncio.CancelledError, ServiceError):
            await call


async def exit_code(worker: HeldWorker) -> int:
    """The exit code, once the process has ended by itself."""
    return (await asyncio.to_thread(worker.wait))[0]


async def test_stuck_worker_says_so_in_time_and_exits(model, tmp_path):
    """Not serving from the deadline on, alive all the while, and gone with code 70 after hang_exit."""
    with held_workers(1, tmp_path, f"--hang-exit={HANG_EXIT}") as (worker,):
        async with serving([worker], model) as (driver, (client,)):
            await client.run(driver.idle())
            worker.hold()
            async with stuck(client, driver.prefill(PROMPT)) as sent_at:
                assert DEADLINE <= time.monotonic() - sent_at < DEADLINE + LATE
                assert await client.health() == [SERVING, NOT_SERVING, NOT_SERVING]
                activity = await client.activity()
                assert (activity.phase, activity.step) == (DevicePhase.COMPUTE, 2)
                assert activity.is_hung
                assert DEADLINE <= activity.seconds_in_phase <= time.monotonic() - sent_at
                assert await exit_code(worker) == 70
                assert abs(time.monotonic() - sent_at - DEADLINE - HANG_EXIT) < LATE


async def test_only_the_hanging_stage_computes(model, tmp_path):
    """In the middle of three it is in COMPUTE; before it nothing is due, behind it they wait for it."""
    with held_workers(3, tmp_path) as workers:
        async with serving(workers, model) as (driver, clients):
            workers[1].hold()
            output = driver.prefill(PROMPT)
            await clients[0].run(output)
            waiting = asyncio.ensure_future(clients[2].run(output))
            async with stuck(clients[1], output):
                first, middle, last = [await client.activity() for client in clients]
                assert (first.phase, first.is_hung) == (DevicePhase.IDLE, False)
                assert (middle.phase, middle.is_hung) == (DevicePhase.COMPUTE, True)
                assert (last.phase, last.is_hung) == (DevicePhase.WAIT_INPUT, False)
                assert last.waiting_on == Rank(stage=1)
                assert last.seconds_in_phase >= DEADLINE
                for client in (clients[0], clients[2]):
                    assert await client.health() == [SERVING, SERVING, SERVING]
                workers[1].release()
                await waiting


async def test_slow_is_not_hung_and_a_kernel_that_returns_is_forgiven(model, tmp_path):
    """A step within its deadline changes nothing; one beyond it is answered all the same."""
    with held_workers(1, tmp_path) as (worker,):
        async with serving([worker], model) as (driver, (client,)):
            worker.hold(seconds=DEADLINE / 2)
            slow = asyncio.ensure_future(client.run(driver.idle()))
            while not slow.done():
                assert await client.health() == [SERVING, SERVING, SERVING]
                assert not (await client.activity()).is_hung
            worker.hold(first_step=2)
            late = asyncio.ensure_future(client.run(driver.idle()))
            await client.wait_for_health(NOT_SERVING)
            worker.release()
            await late
            await client.wait_for_health(SERVING)
            await client.run(driver.idle())
            assert await client.health() == [SERVING, SERVING, SERVING]
            assert worker.process.poll() is None


@pytest.mark.parametrize(
    ("authority", "generation"),
    [(AUTHORITY, GENERATION + 1), (NEWER_EPOCH, 1)],
    ids=["generation", "epoch"],
)
async def test_fenced_while_stuck_exits_at_once(model, tmp_path, authority, generation):
    """Who begins a generation anew, the same coordinator or another, does not wait for hang_exit."""
    with held_workers(1, tmp_path, f"--hang-exit={LONG}") as (worker,):
        async with serving([worker], model) as (driver, (client,)):
            worker.hold()
            async with stuck(client, driver.prefill(PROMPT)):
                asked_at = time.monotonic()
                request = begin_request(generation=generation)
                with pytest.raises(ServiceError):
                    await client.begin_generation(authority, request)
                assert await exit_code(worker) == 70
                assert time.monotonic() - asked_at < LATE
