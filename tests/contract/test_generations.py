"""Generations on real worker processes: how they begin, what they end, and what a worker keeps."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from common.errors import Fenced, ModelError, WrongState
from common.worker_api import DevicePhase, MemoryBudget
from tests.fakes.held_worker import HeldWorker
from tests.fakes.manual_steps import EPOCH
from tests.fakes.stage_pair import newest_client, stage_pair
from tests.fakes.step_client import ClientStream, StepClient, execute_item, until
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_process import WorkerProcess, worker_processes
from tests.fakes.worker_setup import load_request, warm_up

NUM_STEPS = 4
"""Steps with tokens before a test sends what it is about."""

PROMPT_SECONDS = 2.0
"""A call that waits for no other process and no kernel takes less."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of six layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def processes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[HeldWorker]]:
    """Two processes that hold a stage each of the model."""
    with stage_pair(folder, tmp_path_factory.mktemp("holds")) as processes:
        yield processes


@pytest.fixture
async def client(processes: list[HeldWorker]) -> AsyncIterator[StepClient]:
    """The newest coordinator, in its first generation."""
    async with newest_client(processes) as client:
        yield client


async def test_newer_coordinator_ends_the_streams_of_the_older(client: StepClient) -> None:
    """Its BeginGeneration ends them with ABORTED; what the older one sends after that is fenced."""
    await client.run(NUM_STEPS)
    newer = StepClient(client.workers, epoch=client.authority.epoch + 1)
    await newer.begin()
    for stream in client.streams:
        code, error = await stream.ending()
        assert (code, type(error)) == (grpc.StatusCode.ABORTED, Fenced)
        assert f"generation 1 of epoch {newer.authority.epoch} began" in str(error)
    await newer.run(NUM_STEPS)
    before = await newer.digests()
    for worker, item in zip(client.workers, client.items(client.plan()), strict=True):
        stream = ClientStream(worker)
        assert isinstance(await stream.ask(item), Fenced)
        stream.cancel()
    assert await newer.digests() == before
    assert newer.tokens == client.tokens
    newer.leave()


async def test_worker_is_entered_again_without_loading(client: StepClient) -> None:
    """A coordinator of a higher epoch finds the stage held, begins, and gets the same tokens."""
    await client.run(NUM_STEPS)
    held = [await worker.describe() for worker in client.workers]
    newer = StepClient(client.workers, epoch=client.authority.epoch + 1)
    await newer.begin()
    await newer.run(NUM_STEPS)
    assert newer.tokens == client.tokens
    for stage, (before, worker) in enumerate(zip(held, client.workers, strict=True)):
        after = await worker.describe()
        assert before.held_stage is not None
        assert (before.num_loads, after.num_loads) == (1, 1)
        assert after.held_stage == before.held_stage
        assert after.held_stage.request.rank.stage == stage
        assert after.held_stage.num_blocks == 32
    newer.leave()


async def test_generation_begins_while_the_device_waits(client: StepClient) -> None:
    """A rank that waits for tensors nobody will send joins the next generation at once."""
    await client.run(NUM_STEPS)
    last, output = client.workers[-1], client.plan()
    await client.streams[-1].send(client.items(output)[-1])
    await until(last, DevicePhase.WAIT_INPUT, step=client.step)
    async with asyncio.timeout(PROMPT_SECONDS):
        await client.begin()
    await client.run(NUM_STEPS)


async def test_queued_steps_of_an_ended_generation_are_not_run(
    client: StepClient, processes: list[HeldWorker]
) -> None:
    """The kernel that runs finishes, the steps behind it are dropped, and the generation begins."""
    await client.run(NUM_STEPS)
    first = client.workers[0]
    processes[0].hold(first_step=client.step + 1)
    running = client.step + 1
    for output in (client.plan(), client.plan_empty(), client.plan_empty()):
        await client.streams[0].send(execute_item(output))
    await until(first, DevicePhase.COMPUTE, step=running)
    newer = StepClient(client.workers, epoch=client.authority.epoch + 1)
    newer.generation = 1
    beginning = asyncio.create_task(
        first.begin_generation(newer.authority, newer.begin_request(0)), name="begin"
    )
    _, error = await client.streams[0].ending()
    assert "began" in str(error)
    assert not beginning.done()
    processes[0].release()
    await beginning
    await until(first, DevicePhase.IDLE, step=running)


# The way to a generation.


@pytest.fixture
def fresh() -> Iterator[WorkerProcess]:
    """A worker process that nobody has used."""
    with worker_processes(1) as (process,):
        yield process


async def test_generation_begins_in_every_state(fresh: WorkerProcess, folder: Path) -> None:
    """After InitDevice it always begins: it fences, and a worker that is warm joins it."""
    worker = UnaryWorker(fresh.address)
    client = StepClient([worker], epoch=5)

    async def begins(state: str) -> None:
        client.generation += 1
        report = await worker.begin_generation(client.authority, client.begin_request(0))
        info = await worker.describe()
        assert (info.state, info.generation) == (state, client.generation)
        held = info.held_stage
        told = ("", "") if held is None else (held.kv_id, held.report.weights_digest)
        assert (report.kv_id, report.weights_digest) == told

    with pytest.raises(WrongState):
        await begins("CREATED")
    client.generation = 0
    await worker.init_device(client.authority)
    await begins("DEVICE_READY")
    await worker.load_model(client.authority, load_request(str(folder)))
    await begins("MODEL_LOADED")
    await worker.determine_available_memory(client.authority, MemoryBudget(kv_cache_bytes=1 << 20))
    await worker.initialize_kv_cache(client.authority, 32)
    await begins("CACHE_READY")
    await worker.compile_or_warm_up(client.authority)
    await begins("JOINED")
    await begins("JOINED")
    await client.begin()
    await client.run(1)
    await begins("JOINED")
    client.leave()
    await worker.close()


async def test_another_slice_may_be_loaded(fresh: WorkerProcess, folder: Path) -> None:
    """A newer coordinator loads other layers over a generation that runs; its own it ends first."""
    worker = UnaryWorker(fresh.address)
    whole, half = load_request(str(folder)), load_request(str(folder), stage=0, num_stages=2)
    older, newer = (StepClient([worker], epoch=epoch) for epoch in (EPOCH, EPOCH + 1))
    await warm_up(worker, whole)
    older.authority = replace(older.authority, coordinator_id="a test")
    await older.begin()
    await older.run(NUM_STEPS)
    with pytest.raises(WrongState, match="end it first"):
        await worker.load_model(older.authority, half)
    with pytest.raises(ModelError):
        await worker.load_model(newer.authority, replace(whole, model="/no/such/folder"))
    _, error = await older.streams[0].ending()
    assert f"epoch {EPOCH + 1} began" in str(error)
    await worker.load_model(newer.authority, half)
    assert await held_layers(worker) == (0, 3)
    await worker.load_model(newer.authority, whole)
    assert await held_layers(worker) == (0, 6)
    await worker.determine_available_memory(newer.authority, MemoryBudget(kv_cache_bytes=1 << 20))
    await worker.initialize_kv_cache(newer.authority, 32)
    await worker.compile_or_warm_up(newer.authority)
    await newer.begin()
    await newer.run(NUM_STEPS)
    assert newer.tokens == older.tokens
    assert (await worker.describe()).num_loads == 3
    newer.leave()
    await worker.close()


async def held_layers(worker: UnaryWorker) -> tuple[int, int]:
    """The slice a worker says it holds, before its cache is allocated."""
    held = (await worker.describe()).held_stage
    assert held is not None
    assert (held.num_blocks, held.kv_id) == (0, "")
    return held.request.first_layer, held.request.end_layer
