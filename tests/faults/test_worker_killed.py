"""Real worker processes are killed: who waits on them hears it at once, with rank and cause.

A worker is stopped before a step is sent to it, so that the step is in flight when the kill comes.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil
import pytest

from common.config import CacheConfig, ClusterConfig, CoordinatorConfig, ModelConfig, ScheduleConfig
from common.errors import WorkerLost
from common.model_folder import read_model_folder
from common.step import SchedulerOutput, StepId
from coordinator.executors.executor import Executor
from coordinator.executors.fleet import LocalFleet
from coordinator.executors.local_process import LocalWorker, WorkerProcess
from coordinator.executors.remote import RemoteWorker
from tests.fakes.step_answer import step_answer
from tests.fakes.tiny_checkpoint import write_tiny_llama

TOLD_WITHIN_S = 1.0
ORPHAN_GONE_WITHIN_S = 10.0
CLUSTER = ClusterConfig(pp=2, device="cpu", threads=1)

COORDINATOR = """
import asyncio, sys
from common.config import ClusterConfig
from coordinator.executors.fleet import LocalFleet

async def main():
    workers = await LocalFleet(ClusterConfig(device="cpu", threads=1)).connect()
    sys.stdout.write(f"{workers[0].process.pid}\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=2)


@pytest.fixture
async def workers() -> AsyncIterator[Sequence[LocalWorker]]:
    """Two fresh local workers."""
    fleet = LocalFleet(CLUSTER)
    yield await fleet.connect()
    await fleet.close()


@pytest.fixture
async def executor(workers, model) -> AsyncIterator[Executor]:
    """A serving pipeline of two local workers."""
    config = tiny_config(model, CLUSTER)
    created = await Executor.create(workers, config, read_model_folder(model))
    await created.initialize(await created.determine_available_memory())
    yield created
    await created.shutdown()


def tiny_config(model: Path, cluster: ClusterConfig) -> CoordinatorConfig:
    """Small budgets, so that profiling and warming up take no time."""
    return CoordinatorConfig(
        model=ModelConfig(model=str(model), max_model_len=64),
        cache=CacheConfig(kv_cache_bytes=1 << 20),
        schedule=ScheduleConfig(max_num_seqs=4, max_num_batched_tokens=16),
        cluster=cluster,
    )


def empty_step(executor: Executor) -> SchedulerOutput:
    """Step 1, without tokens."""
    step_id = StepId(epoch=executor.authority.epoch, generation=executor.generation, step=1)
    return SchedulerOutput(step_id=step_id, base_step=0)


async def killed(worker: LocalWorker) -> float:
    """Kill a worker process; returns when, on the monotonic clock."""
    psutil.Process(worker.process.pid).kill()
    return time.monotonic()


@pytest.mark.parametrize("stage", [0, 1])
async def test_step_in_flight_fails_naming_rank_and_cause(executor, workers, stage):
    """The step does not wait for the surviving rank, and the topology keeps the cause."""
    psutil.Process(workers[stage].process.pid).suspend()
    step = asyncio.ensure_future(step_answer(executor, empty_step(executor)))
    await asyncio.sleep(0.1)
    assert not step.done()
    killed_at = await killed(workers[stage])
    with pytest.raises(WorkerLost) as caught:
        await step
    assert time.monotonic() - killed_at < TOLD_WITHIN_S
    address = workers[stage].address
    assert str(caught.value) == f"stage {stage} ({address}) lost: killed by SIGKILL"
    assert [rank.cause for rank in executor.topology()][stage] == "killed by SIGKILL"


async def test_loss_of_an_idle_worker_is_told(executor, workers):
    """Nobody needs to send a step to learn that a worker is gone; later steps fail at once."""
    told: asyncio.Queue[WorkerLost] = asyncio.Queue()
    executor.on_lost(told.put_nowait)
    await killed(workers[1])
    async with asyncio.timeout(TOLD_WITHIN_S):
        assert "stage 1" in str(await told.get())
        with pytest.raises(WorkerLost, match=r"stage 1 .* lost: killed by SIGKILL"):
            await step_answer(executor, empty_step(executor))


async def test_remote_worker_that_is_killed_is_told_by_its_connection(model):
    """Without a child to watch, the end of the connection is the cause, as soon."""
    process = await WorkerProcess.start(
        ["--listen=127.0.0.1:0", "--device=cpu", "--threads=1"], name="a worker"
    )
    config = tiny_config(model, ClusterConfig(workers=(process.address,)))
    worker = RemoteWorker(process.address)
    remote = await Executor.create([worker], config, read_model_folder(model))
    try:
        await remote.initialize(await remote.determine_available_memory())
        psutil.Process(process.pid).suspend()
        step = asyncio.ensure_future(step_answer(remote, empty_step(remote)))
        await asyncio.sleep(0.1)
        psutil.Process(process.pid).kill()
        with pytest.raises(WorkerLost, match=r"^stage 0 \(127.0.0.1:\d+\) lost: connection closed"):
            async with asyncio.timeout(TOLD_WITHIN_S):
                await step
    finally:
        await remote.shutdown()
        await worker.close()
        await process.end()


async def test_control_call_fails_when_the_process_is_killed(workers):
    """A worker that dies while it is described, loaded or warmed up does not cost the deadline."""
    psutil.Process(workers[0].process.pid).suspend()
    call = asyncio.ensure_future(workers[0].describe())
    await asyncio.sleep(0.1)
    await killed(workers[0])
    with pytest.raises(WorkerLost, match="killed by SIGKILL"):
        async with asyncio.timeout(TOLD_WITHIN_S):
            await call


async def test_survivor_that_dies_while_another_is_replaced_is_lost():
    """Nobody waits for a process that ended before anyone was connected to it."""
    fleet = LocalFleet(CLUSTER)
    survivor, victim = await fleet.connect()
    fleet.discard(1)
    connecting = asyncio.create_task(fleet.connect())
    await asyncio.to_thread(psutil.wait_procs, [psutil.Process(victim.process.pid)])
    psutil.Process(survivor.process.pid).kill()
    dead, _ = await connecting
    async with asyncio.timeout(TOLD_WITHIN_S):
        with pytest.raises(WorkerLost, match="killed by SIGKILL"):
            await dead.describe()
    replaced, _ = await fleet.connect()
    assert (await replaced.describe()).state == "CREATED"
    await fleet.close()


async def test_failed_start_leaves_no_process():
    """One worker without its device is named, and the fleet ends the other."""
    fleet = LocalFleet(ClusterConfig(pp=2, devices=("cpu", "cuda:99"), threads=1))
    with pytest.raises(WorkerLost, match=r"worker of stage 1 exited with code \d+ before it was"):
        await fleet.connect()
    await fleet.close()
    assert psutil.Process().children() == []


async def test_no_worker_outlives_a_killed_coordinator():
    """A closed standard input ends the worker when its parent could not."""
    coordinator = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COORDINATOR, stdout=asyncio.subprocess.PIPE
    )
    assert coordinator.stdout is not None
    worker = psutil.Process(int(await coordinator.stdout.readline()))
    coordinator.send_signal(signal.SIGKILL)
    await coordinator.wait()
    await asyncio.to_thread(worker.wait, ORPHAN_GONE_WITHIN_S)
    assert not worker.is_running()
