"""A worker's client behind a proxy that cuts its connections: what goes on, and what is a loss."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import grpc
import pytest
from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

from common.codecs.stream_codec import decode_execute_model, encode_stream_answer
from common.codecs.worker_codec import (
    encode_activity,
    encode_generation_report,
    encode_worker_info,
)
from common.errors import Fenced, ServiceError, WorkerLost
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import bind, build_server
from common.step import ExecutePending, ExecuteResult, Phase, SchedulerOutput, StepId, StepKey
from common.worker_api import (
    BeginGeneration,
    DevicePhase,
    GenerationReport,
    Layout,
    Rank,
    WorkerActivity,
)
from coordinator.executors.reconnect import RECONNECT_WINDOW
from coordinator.executors.remote import RemoteWorker
from tests.fakes.cutting_proxy import CuttingProxy, cutting_proxy
from tests.fakes.pipeline_driver import AUTHORITY, GENERATION
from tests.fakes.scripted_worker import ScriptedWorker

LIMIT_S = 10.0


class AnswersOnCue(WorkerServicer):
    """A worker that notes the steps of each stream and answers while it may."""

    def __init__(self) -> None:
        self.incarnation = "first"
        self.epoch = AUTHORITY.epoch
        self.streams: list[list[int]] = []
        self.deadlines: list[float | None] = []
        self.may_answer = asyncio.Event()
        self.is_told_to_end = asyncio.Event()
        self.received: asyncio.Queue[int] = asyncio.Queue()

    async def Describe(self, request, context):
        """The process it is, in the generation that was begun."""
        info = await ScriptedWorker().describe()
        return encode_worker_info(
            replace(info, incarnation=self.incarnation, epoch=self.epoch, generation=GENERATION)
        )

    async def BeginGeneration(self, request, context):
        """Join."""
        report = GenerationReport(incarnation=self.incarnation, kv_id="", weights_digest="")
        return encode_generation_report(report)

    async def ConnectPeers(self, request, context):
        """Yes."""
        return pb.ConnectPeersResponse()

    async def RunSteps(self, request_iterator, context):
        """Read without waiting for the answers; end as a fenced stream does when told to."""
        self.streams.append([])
        async with asyncio.TaskGroup() as tasks:
            exchange = tasks.create_task(self._exchange(context, self.streams[-1]))
            end = tasks.create_task(self.is_told_to_end.wait())
            await asyncio.wait({exchange, end}, return_when=asyncio.FIRST_COMPLETED)
            exchange.cancel()
            end.cancel()
        if self.is_told_to_end.is_set():
            raise Fenced("generation 1 of epoch 9 began")

    async def WatchStatus(self, request, context):
        """Always idle."""
        while True:
            yield encode_activity(
                WorkerActivity(
                    state="SERVING",
                    epoch=self.epoch,
                    generation=GENERATION,
                    step=0,
                    phase=DevicePhase.IDLE,
                    seconds_in_phase=0.0,
                )
            )
            await asyncio.sleep(request.interval_ms / 1000)

    async def _exchange(self, context, steps: list[int]) -> None:
        while (item := await context.read()) is not grpc.aio.EOF:
            request = decode_execute_model(item.execute)
            step_id = request.scheduler_output.step_id
            steps.append(step_id.step)
            self.deadlines.append(request.deadline)
            self.received.put_nowait(step_id.step)
            if self.may_answer.is_set():
                key = StepKey(step_id=step_id, phase=Phase.EXECUTE)
                await context.write(encode_stream_answer(ExecutePending(key=key), key))


@pytest.fixture
async def servicer() -> AnswersOnCue:
    """The other side."""
    return AnswersOnCue()


@pytest.fixture
async def proxy(servicer) -> AsyncIterator[CuttingProxy]:
    """The proxy before a server."""
    server = build_server(interceptors=[ServiceInterceptor()])
    add_WorkerServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, None)
        yield await stack.enter_async_context(cutting_proxy(f"127.0.0.1:{port}"))


@pytest.fixture
async def worker(proxy) -> AsyncIterator[RemoteWorker]:
    """A client of the worker, in a generation."""
    client = RemoteWorker(proxy.address)
    request = BeginGeneration(
        generation=GENERATION, rank=Rank(), layout=Layout(), max_steps_in_flight=2
    )
    await client.begin_generation(AUTHORITY, request)
    await client.connect_peers(AUTHORITY, GENERATION, ())
    async with asyncio.timeout(LIMIT_S):
        yield client
    await client.close()


def submit(worker: RemoteWorker, number: int) -> "asyncio.Future[ExecuteResult]":
    """A step without tokens."""
    step_id = StepId(epoch=AUTHORITY.epoch, generation=GENERATION, step=number)
    output = SchedulerOutput(step_id=step_id, base_step=number - 1)
    return worker.submit_step(output, sample=False, deadline=2.5)


async def received(servicer: AnswersOnCue, count: int) -> list[int]:
    """The next steps that arrive on any stream."""
    return [await servicer.received.get() for _ in range(count)]


async def test_unanswered_steps_are_sent_again_on_a_new_stream(servicer, proxy, worker):
    """What was answered is not; what follows comes behind, and each future gets its answer."""
    servicer.may_answer.set()
    await submit(worker, 1)
    servicer.may_answer.clear()
    futures = [submit(worker, number) for number in (2, 3)]
    assert await received(servicer, 3) == [1, 2, 3]
    servicer.may_answer.set()
    proxy.cut()
    futures.append(submit(worker, 4))
    results = await asyncio.gather(*futures)
    assert [result.key.step_id.step for result in results] == [2, 3, 4]
    assert servicer.streams == [[1, 2, 3], [2, 3, 4]]
    assert servicer.deadlines == [2.5] * 6


async def test_restarted_worker_is_lost(servicer, proxy, worker):
    """Another process at the same address knows nothing of the generation."""
    told: list[ServiceError] = []
    worker.on_lost(told.append)
    step = submit(worker, 1)
    await received(servicer, 1)
    servicer.incarnation = "second"
    proxy.cut()
    with pytest.raises(WorkerLost, match=r"connection closed: .*, and it was restarted"):
        await step
    assert len(told) == 1
    assert len(servicer.streams) == 1


async def test_worker_out_of_reach_is_lost_after_the_window(servicer, proxy, worker):
    """A port that takes connections and closes them is tried for a second, no longer."""
    step = submit(worker, 1)
    await received(servicer, 1)
    proxy.is_closing_new = True
    started_at = asyncio.get_running_loop().time()
    proxy.cut()
    with pytest.raises(WorkerLost, match="out of reach for 1 s"):
        await step
    assert RECONNECT_WINDOW <= asyncio.get_running_loop().time() - started_at < 2.0


@pytest.mark.parametrize(("epoch", "kind"), [(AUTHORITY.epoch, WorkerLost), (9, Fenced)])
async def test_stream_that_the_worker_ends_is_not_resumed(servicer, worker, epoch, kind):
    """A newer coordinator fences this one; without one the worker has left the generation."""
    told: list[ServiceError] = []
    worker.on_lost(told.append)
    step = submit(worker, 1)
    await received(servicer, 1)
    servicer.epoch = epoch
    servicer.is_told_to_end.set()
    with pytest.raises(kind):
        await step
    assert [type(error) for error in told] == [kind]
    assert len(servicer.streams) == 1


async def test_watch_goes_on_across_a_cut(proxy, worker):
    """Who watches is not told of a broken connection."""
    async with aclosing(worker.watch_status(interval=0.01)) as activities:
        assert (await anext(activities)).phase is DevicePhase.IDLE
        proxy.cut()
        for _ in range(20):
            assert (await anext(activities)).state == "SERVING"
    assert proxy.num_connections == 2


async def test_watch_ends_with_the_loss(proxy, worker):
    """The watch notices by itself, and raises what all others are told."""
    told: list[ServiceError] = []
    worker.on_lost(told.append)
    proxy.is_closing_new = True

    async def cut_and_watch() -> None:
        async with aclosing(worker.watch_status(interval=0.01)) as activities:
            async for _ in activities:
                proxy.cut()

    with pytest.raises(WorkerLost) as caught:
        await cut_and_watch()
    assert told == [caught.value]


async def test_generation_begun_anew_closes_the_stream_of_the_former_one(servicer, worker):
    """A survivor's client is used again; what was unanswered fails, and nothing is a loss."""
    told: list[ServiceError] = []
    worker.on_lost(told.append)
    old = submit(worker, 1)
    await received(servicer, 1)
    request = BeginGeneration(
        generation=GENERATION, rank=Rank(), layout=Layout(), max_steps_in_flight=2
    )
    await worker.begin_generation(AUTHORITY, request)
    with pytest.raises(WorkerLost, match="closed the step stream"):
        await old
    await worker.connect_peers(AUTHORITY, GENERATION, ())
    servicer.may_answer.set()
    await submit(worker, 1)
    assert (servicer.streams, told) == ([[1], [1]], [])
