"""One suite for every `WorkerApi`: scripted, in process, behind gRPC, and in a process of its own.

The workers of a kind that compute share one tiny checkpoint and must agree on its tokens. Tests of
steps share one serving pipeline a kind, since starting processes costs seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from stepwire.v1.worker_pb2_grpc import add_WorkerServicer_to_server

from common.channels.channel import InMemoryHub
from common.config import ClusterConfig, WorkerConfig
from common.errors import (
    Fenced,
    InvalidStep,
    NeedResync,
    StepRefused,
    WorkerLost,
    WrongOrder,
    WrongState,
)
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import bind, build_server
from common.step import (
    ExecutePending,
    GrammarMask,
    IntermediateTensors,
    ModelRunnerOutput,
    SchedulerOutput,
    StepId,
)
from common.worker_api import (
    PROTOCOL_VERSION,
    Authority,
    DevicePhase,
    ExecuteModel,
    WorkerApi,
)
from coordinator.executors.fleet import LocalFleet
from coordinator.executors.local_process import WorkerProcess, worker_flags
from coordinator.executors.remote import RemoteWorker
from tests.fakes.byte_tokenizer import VOCAB_SIZE
from tests.fakes.manual_steps import GENERATION, step_id
from tests.fakes.pipeline_driver import PipelineDriver
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_pipeline import scripted_pipeline
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_setup import AUTHORITY, BLOCK_SIZE, BUDGET, begin_request, peers_of
from worker_service.servicer import WorkerServicer
from worker_service.worker import Worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_LAYERS = 4
NUM_TOKENS = 9
PROMPT = (72, 101, 108, 108, 111, 44, 32, 119)
FORMER = Authority(coordinator_id="an earlier coordinator", epoch=AUTHORITY.epoch - 1)
CPU = ClusterConfig(device="cpu", threads=1)


class SubmitsPhases:
    """A scripted worker with the calls that the servicer needs beyond `WorkerApi`."""

    def __init__(self, worker: WorkerApi) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def submit_execute(self, request: ExecuteModel, *, sample: bool) -> Awaitable[object]:
        """Queue a step."""
        return self._worker.submit_step(request.scheduler_output, sample=sample)

    def is_current(self, step_id: StepId) -> bool:
        """Its one stream is never replaced."""
        return False

    def on_generation_over(self, callback: Callable[[str], None]) -> None:
        """Its streams end with the client."""


async def scripted(stack: AsyncExitStack, num_stages: int) -> Sequence[WorkerApi]:
    """Test doubles."""
    return scripted_pipeline(num_stages)


async def scripted_behind_grpc(stack: AsyncExitStack, num_stages: int) -> Sequence[WorkerApi]:
    """Test doubles, each behind the real servicer and client."""
    return [await _serve(stack, worker) for worker in scripted_pipeline(num_stages)]


async def in_process(stack: AsyncExitStack, num_stages: int) -> Sequence[WorkerApi]:
    """Workers in this process, joined by channels in memory."""
    hub = InMemoryHub()
    return [
        Worker(WorkerConfig(device="cpu", threads=1), hub.channels(f"stage {stage}"))
        for stage in range(num_stages)
    ]


async def remote(stack: AsyncExitStack, num_stages: int) -> Sequence[WorkerApi]:
    """Processes that somebody else started, known by their addresses."""
    processes = await asyncio.gather(
        *(
            WorkerProcess.start(worker_flags(CPU, 0), name=f"worker {stage}")
            for stage in range(num_stages)
        )
    )
    for process in processes:
        stack.push_async_callback(process.end)
    return [RemoteWorker(process.address) for process in processes]


async def local_process(stack: AsyncExitStack, num_stages: int) -> Sequence[WorkerApi]:
    """Child processes of this one."""
    fleet = LocalFleet(replace(CPU, pp=num_stages))
    stack.push_async_callback(fleet.close)
    return await fleet.connect()


async def _serve(stack: AsyncExitStack, worker: WorkerApi) -> RemoteWorker:
    server = build_server(interceptors=[ServiceInterceptor()])
    add_WorkerServicer_to_server(WorkerServicer(SubmitsPhases(worker)), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    stack.push_async_callback(worker.close)
    stack.push_async_callback(server.stop, None)
    return RemoteWorker(f"127.0.0.1:{port}")


Starter = Callable[[AsyncExitStack, int], Awaitable[Sequence[WorkerApi]]]
FAKES: tuple[Starter, ...] = (scripted, scripted_behind_grpc)
KINDS: tuple[Starter, ...] = (*FAKES, in_process, remote, local_process)


@asynccontextmanager
async def started(start: Starter, num_stages: int, model: Path) -> AsyncIterator[PipelineDriver]:
    """Fresh workers of a kind under a driver, closed at the end."""
    async with AsyncExitStack() as stack:
        workers = await start(stack, num_stages)
        for worker in workers:
            stack.push_async_callback(worker.close)
        yield PipelineDriver(workers, model=str(model), num_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=NUM_LAYERS)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def kind(request) -> Starter:
    """How the workers under test are made."""
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(kind, model) -> tuple[int, ...]:
    """The tokens that must follow PROMPT, computed in process on one stage or by the script."""
    if kind in FAKES:
        return scripted_tokens(PROMPT, NUM_TOKENS)
    async with started(in_process, 1, model) as driver:
        await driver.bring_up()
        return await driver.generate(PROMPT, NUM_TOKENS, run=driver.run_by_calls)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(kind, model) -> AsyncIterator[PipelineDriver]:
    """One serving worker that is the whole pipeline."""
    async with started(kind, 1, model) as driver:
        await driver.bring_up()
        yield driver


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(kind, model) -> AsyncIterator[PipelineDriver]:
    """Two serving stages."""
    async with started(kind, 2, model) as driver:
        await driver.bring_up()
        yield driver


async def test_lifecycle(kind, model):
    """A worker reports sizes that agree, refuses calls out of order, and serves only at the end."""
    async with started(kind, 1, model) as driver:
        worker = driver.last
        await _check_description(worker, "CREATED", epoch=0)
        with pytest.raises(WrongState):
            await worker.load_model(AUTHORITY, driver.load_request(0))
        await _check_description(worker, "CREATED", epoch=0)
        assert await worker.init_device(AUTHORITY)
        with pytest.raises(WrongState):
            await worker.init_device(AUTHORITY)
        await _check_loading(driver)
        await _check_cache(driver)
        assert await worker.compile_or_warm_up(AUTHORITY) >= 0
        await _check_generation(driver)


async def _check_description(worker: WorkerApi, state: str, *, epoch: int) -> None:
    info = await worker.describe()
    assert info.protocol_min <= PROTOCOL_VERSION <= info.protocol_max
    assert (info.state, info.epoch) == (state, epoch)
    assert info.incarnation == (await worker.describe()).incarnation != ""


async def _check_loading(driver: PipelineDriver) -> None:
    report = await driver.last.load_model(AUTHORITY, driver.load_request(0))
    assert report.dtype == "float32"
    assert report.parameter_bytes > 0
    assert report.tensors_read > 0
    await _check_description(driver.last, "MODEL_LOADED", epoch=AUTHORITY.epoch)
    with pytest.raises(Fenced):
        await driver.last.get_kv_cache_spec(FORMER)


async def _check_cache(driver: PipelineDriver) -> None:
    worker = driver.last
    memory = await worker.determine_available_memory(AUTHORITY, BUDGET)
    assert memory.kv_cache_bytes == BUDGET.kv_cache_bytes
    spec = await worker.get_kv_cache_spec(AUTHORITY)
    assert (spec.block_size, spec.groups[0].num_layers) == (BLOCK_SIZE, NUM_LAYERS)
    cache = await worker.initialize_kv_cache(AUTHORITY, 7)
    assert cache.kv_cache_bytes == 7 * spec.bytes_per_block
    assert cache.kv_id


async def _check_generation(driver: PipelineDriver) -> None:
    worker = driver.last
    joined = await worker.begin_generation(AUTHORITY, begin_request())
    assert joined.incarnation == (await worker.describe()).incarnation
    step = SchedulerOutput(step_id=step_id(1), base_step=0)
    with pytest.raises(WrongState):
        await worker.submit_step(step, sample=False)
    await worker.connect_peers(AUTHORITY, GENERATION, await peers_of(driver.workers))
    assert isinstance(await worker.submit_step(step, sample=False), ModelRunnerOutput)
    await driver.end()
    with pytest.raises(WrongState):
        await worker.submit_step(step, sample=False)


async def test_streamed_steps_give_the_expected_tokens(single, expected):
    """Prefill and decodes over block boundaries, submitted as the executor does."""
    assert await single.generate(PROMPT, NUM_TOKENS, run=single.run_by_stream) == expected


async def test_plain_calls_give_the_expected_tokens(single, expected):
    """Execute and sample as two calls are the same step."""
    assert await single.generate(PROMPT, NUM_TOKENS, run=single.run_by_calls) == expected


async def test_two_stages_joined_by_tensor_channels_give_the_same_tokens(pair, expected):
    """Cutting the layers in two changes nothing."""
    assert await pair.generate(PROMPT, NUM_TOKENS, run=pair.run_by_stream) == expected


async def test_two_stages_with_inline_tensors_give_the_same_tokens(pair, expected):
    """Tensors carried by the caller are the tensors of the channel."""
    assert await pair.generate(PROMPT, NUM_TOKENS, run=pair.run_by_calls) == expected


async def test_first_stage_answers_descriptors_and_the_bytes_only_inline(pair):
    """hidden_states has a row a token; over the channel the reply has no bytes."""
    output = pair.prefill(PROMPT)
    streamed = await asyncio.gather(
        *(worker.submit_step(output, sample=worker is pair.last) for worker in pair.workers)
    )
    assert isinstance(streamed[0], IntermediateTensors)
    assert streamed[0].inline is None
    (descriptor,) = streamed[0].descriptors
    assert (descriptor.name, descriptor.shape[0]) == ("hidden_states", len(PROMPT))
    await pair.run_by_stream(pair.drop())


async def test_steps_are_answered_in_the_order_they_were_submitted(single):
    """Four steps in one go, none awaited before the next is sent."""
    outputs = [single.prefill(PROMPT), single.drop(), single.prefill(PROMPT), single.drop()]
    futures = [single.last.submit_step(output, sample=output.num_rows > 0) for output in outputs]
    results = await asyncio.gather(*futures)
    assert [result.key.step_id for result in results] == [output.step_id for output in outputs]


async def test_execute_alone_yields_no_token(single):
    """The last stage keeps its hidden states until the sample phase asks for the token."""
    output = single.prefill(PROMPT)
    executed = await single.last.execute_model(ExecuteModel(scheduler_output=output))
    assert isinstance(executed, ExecutePending)
    sampled = await single.last.sample_tokens(output.step_id)
    assert sampled.sampled_token_ids.num_rows == 1
    await single.run_by_stream(single.drop())


async def test_wrong_order_is_refused_and_changes_nothing(single, expected):
    """Sample before execute and execute twice are errors; the step then goes on as if they were not."""
    output = single.prefill(PROMPT)
    early = replace(output, step_id=step_id(single.step + 1), base_step=single.step)
    with pytest.raises(WrongOrder):
        await single.last.sample_tokens(output.step_id)
    await single.last.execute_model(ExecuteModel(scheduler_output=output))
    with pytest.raises(WrongOrder):
        await single.last.execute_model(ExecuteModel(scheduler_output=early))
    sampled = await single.last.sample_tokens(output.step_id)
    assert sampled.sampled_token_ids.row(0).tolist() == [expected[0]]
    await single.run_by_stream(single.drop())


async def test_step_submitted_again_is_answered_by_the_same_result(single, expected):
    """Thrice at once and once more when it is done: it runs once, and nobody hears of an error."""
    output = single.prefill(PROMPT)
    at_once = [single.last.submit_step(output, sample=True) for _ in range(3)]
    results = [*await asyncio.gather(*at_once), await single.last.submit_step(output, sample=True)]
    assert [result.sampled_token_ids.values.tolist() for result in results] == [[expected[0]]] * 4
    await single.run_by_stream(single.drop())


async def test_sample_phase_waits_for_its_mask(single, expected):
    """The step is executed alone; its mask brings the token, and once more the same one."""
    output = replace(single.prefill(PROMPT), grammar_mask_follows=True)
    pending = single.last.submit_step(output, sample=False)
    (handle,) = output.handles
    mask = GrammarMask(
        handles=np.array([handle], dtype=np.uint64),
        num_positions=np.array([1], dtype=np.int32),
        bits=np.full((1, -(-VOCAB_SIZE // 32)), -1, dtype=np.int32),
    )
    sampled = [single.last.submit_sample(output.step_id, mask) for _ in range(2)]
    assert isinstance(await pending, ExecutePending)
    results = [
        *await asyncio.gather(*sampled),
        await single.last.submit_sample(output.step_id, mask),
    ]
    assert [result.sampled_token_ids.values.tolist() for result in results] == [[expected[0]]] * 3
    await single.run_by_stream(single.drop())


async def test_watch_tells_the_place_in_the_lifecycle(single):
    """The first word of a watch is what the worker is now, and the next one comes in time."""
    async with asyncio.timeout(5), aclosing(single.last.watch_status(interval=0.05)) as activities:
        told = [await anext(activities) for _ in range(2)]
    for activity in told:
        assert (activity.state, activity.epoch, activity.generation) == (
            "SERVING",
            AUTHORITY.epoch,
            GENERATION,
        )
        assert (activity.phase, activity.is_hung) == (DevicePhase.IDLE, False)
        assert activity.kv_id != ""


async def test_step_without_tokens_is_answered_by_the_empty_output(single, pair):
    """There is no sample phase and no tensor frame, whatever the stage."""
    for driver in (single, pair):
        await driver.run_by_stream(driver.prefill(PROMPT))
        output = driver.drop()
        for worker in driver.workers:
            result = await worker.submit_step(output, sample=False)
            assert isinstance(result, ModelRunnerOutput)
            assert (result.key.step_id, result.handles.size) == (output.step_id, 0)


async def test_refused_steps_change_nothing(single, expected):
    """Another generation, a wrong base step and an unknown request are refused, each by its class."""
    await single.run_by_stream(single.idle())  # so that step 0 is not the last one applied
    good = single.prefill(PROMPT)
    other_generation = replace(good.step_id, generation=GENERATION + 1)
    refused: list[tuple[SchedulerOutput, type[StepRefused]]] = [
        (replace(good, step_id=other_generation), Fenced),
        (replace(good, base_step=0), NeedResync),
        (replace(good, finished_handles=np.array([999], dtype=np.uint64)), InvalidStep),
    ]
    for output, error in refused:
        with pytest.raises(error):
            await single.last.submit_step(output, sample=True)
    result = await single.run_by_stream(good)
    assert result.sampled_token_ids.row(0).tolist() == [expected[0]]
    await single.run_by_stream(single.drop())


async def test_closed_worker_answers_no_more(kind, model):
    """A step after close fails instead of waiting for ever; closing again is no error."""
    async with started(kind, 1, model) as driver:
        await driver.last.close()
        await driver.last.close()
        step = SchedulerOutput(step_id=step_id(1), base_step=0)
        with pytest.raises((WorkerLost, WrongState)):
            await driver.last.submit_step(step, sample=False)
