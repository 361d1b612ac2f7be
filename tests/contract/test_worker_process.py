"""The worker as a process: what it prints, how it is asked for its health, and when it ends."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from common.config_loader import child_environment
from common.health import LIVENESS, WORKER, WORKER_STEPS
from common.worker_api import ExecuteModel
from tests.fakes.manual_steps import GENERATION, digest_step
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_process import ROOT, WorkerProcess, worker_processes
from tests.fakes.worker_setup import AUTHORITY, join, load_request, warm_up

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    """A worker process that ends with its standard input."""
    with worker_processes(1, "--exit-with-stdin") as (worker,):
        yield worker


async def health_of(worker: UnaryWorker, name: str) -> int:
    """What the process answers to a health check."""
    stub = health_pb2_grpc.HealthStub(worker.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return answer.status


def test_idle_process_ends_at_once_on_a_signal(process: WorkerProcess) -> None:
    """An idle worker exits 0 on SIGTERM; the ready line is all it ever printed."""
    process.send_signal(signal.SIGTERM)
    assert process.wait() == (0, "")


def test_process_ends_with_its_standard_input(process: WorkerProcess) -> None:
    """A worker told so exits 0 when the process that started it is gone."""
    process.close_stdin()
    assert process.wait() == (0, "")


def test_reflection_lists_the_services(process: WorkerProcess) -> None:
    """Tools without the contract at hand can ask for it."""
    with grpc.insecure_channel(process.address) as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"stepwire.v1.Worker", "grpc.health.v1.Health"} <= set(services)


async def test_member_of_a_generation_serves_on_after_a_signal(
    process: WorkerProcess, tmp_path: Path
) -> None:
    """After SIGTERM a worker in a generation still runs steps, until EndGeneration; then it exits 0."""
    worker = UnaryWorker(process.address)
    assert [await health_of(worker, name) for name in (LIVENESS, WORKER, WORKER_STEPS)] == [
        SERVING,
        SERVING,
        NOT_SERVING,
    ]
    await warm_up(worker, load_request(str(write_tiny_llama(tmp_path))))
    await join([worker])
    assert await health_of(worker, WORKER_STEPS) == SERVING
    process.send_signal(signal.SIGTERM)
    for step in range(1, 4):
        await worker.execute_model(ExecuteModel(scheduler_output=digest_step(step)))
    assert process.process.poll() is None
    await worker.end_generation(AUTHORITY, GENERATION)
    await worker.close()
    assert await asyncio.to_thread(process.wait) == (0, "")


async def test_second_signal_ends_at_once(process: WorkerProcess, tmp_path: Path) -> None:
    """A second SIGTERM does not wait for the coordinator."""
    worker = UnaryWorker(process.address)
    await warm_up(worker, load_request(str(write_tiny_llama(tmp_path))))
    await join([worker])
    process.send_signal(signal.SIGTERM)
    for step in (1, 2):
        await worker.execute_model(ExecuteModel(scheduler_output=digest_step(step)))
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait) == (-signal.SIGTERM, "")
    await worker.close()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--listen=nowhere"], "listen must be HOST:PORT"),
        (["--listen=0.0.0.0:0"], "listen is '0.0.0.0'"),
        (["--tensor-listen=nowhere.invalid:0", "--allow-plaintext"], "Name or service not known"),
        (["--device=tpu"], "device must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_wrong_setting_is_one_line_on_stderr(flags: list[str], named: str) -> None:
    """A setting that cannot work ends the process with code 2 and one line that says why."""
    ended = subprocess.run(
        [sys.executable, "-m", "worker_service", *flags],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert named in line
