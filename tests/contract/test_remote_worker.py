"""What a worker behind gRPC adds to the common suite: waiting for it, and losing it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

from common.codecs.worker_codec import encode_worker_info
from common.errors import ServiceError, Unavailable, WorkerLost
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import bind, build_server
from common.step import SchedulerOutput
from coordinator.executors.remote import RemoteWorker
from tests.fakes.manual_steps import GENERATION, step_id
from tests.fakes.scripted_worker import ScriptedWorker
from tests.fakes.worker_setup import AUTHORITY, load_request

TOLD_WITHIN_S = 1.0


class TakesStepsForEver(WorkerServicer):
    """A service that describes itself, lets anybody connect, and never answers a step."""

    def __init__(self) -> None:
        self.has_step = asyncio.Event()
        self.refusal: ServiceError | None = None

    async def Describe(self, request, context):
        """A scripted worker's description."""
        return encode_worker_info(await ScriptedWorker().describe())

    async def ConnectPeers(self, request, context):
        """Yes, unless it is to be refused."""
        if self.refusal is not None:
            raise self.refusal
        return pb.ConnectPeersResponse()

    async def LoadModel(self, request, context):
        """Never done."""
        self.has_step.set()
        await asyncio.Event().wait()

    async def RunSteps(self, request_iterator, context):
        """Read and say nothing."""
        while await context.read() is not grpc.aio.EOF:
            self.has_step.set()


@asynccontextmanager
async def serving(servicer: WorkerServicer, address: str) -> AsyncIterator[str]:
    """A server on an address; yields it with its port."""
    server = build_server(interceptors=[ServiceInterceptor()])
    add_WorkerServicer_to_server(servicer, server)
    port = bind(server, address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


@pytest.fixture
async def servicer() -> TakesStepsForEver:
    """The other side."""
    return TakesStepsForEver()


async def test_worker_that_is_not_up_yet_is_waited_for(servicer):
    """Start order does not matter: describe answers once the port is served."""
    async with serving(servicer, "127.0.0.1:0") as address:
        pass
    worker = RemoteWorker(address)
    try:
        description = asyncio.ensure_future(worker.describe())
        await asyncio.sleep(0.2)
        assert not description.done()
        async with serving(servicer, address):
            assert (await description).build == "scripted"
    finally:
        await worker.close()


async def test_end_of_the_connection_fails_all_that_is_unanswered(servicer):
    """Steps in flight, later steps and the callbacks get one cause; a late callback too."""
    told: list[ServiceError] = []
    async with serving(servicer, "127.0.0.1:0") as address:
        worker = RemoteWorker(address)
        worker.on_lost(told.append)
        await worker.connect_peers(AUTHORITY, GENERATION, ())
        steps = [
            worker.submit_step(SchedulerOutput(step_id=step_id(n), base_step=n - 1), sample=False)
            for n in (1, 2)
        ]
        await servicer.has_step.wait()
    async with asyncio.timeout(TOLD_WITHIN_S):
        errors = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(error) for error in errors] == [WorkerLost, WorkerLost]
    assert len(told) == 1
    assert str(told[0]).startswith("connection closed")
    worker.on_lost(told.append)
    assert told[1] is told[0]
    with pytest.raises(WorkerLost, match="connection closed"):
        await worker.submit_step(SchedulerOutput(step_id=step_id(3), base_step=2), sample=False)
    await worker.close()


async def test_control_call_on_a_worker_that_goes_away_fails(servicer):
    """LoadModel may take an hour, but not when nobody works on it."""
    async with serving(servicer, "127.0.0.1:0") as address:
        worker = RemoteWorker(address)
        loading = asyncio.ensure_future(worker.load_model(AUTHORITY, load_request("tiny")))
        await servicer.has_step.wait()
    with pytest.raises(WorkerLost, match="connection closed"):
        async with asyncio.timeout(TOLD_WITHIN_S):
            await loading
    await worker.close()


async def test_control_call_does_not_wait_for_a_worker_that_is_gone(servicer):
    """Only describe waits; later in the life of a worker a refused connection is a loss."""
    async with serving(servicer, "127.0.0.1:0") as address:
        worker = RemoteWorker(address)
        await worker.describe()
    with pytest.raises(WorkerLost, match="connection closed"):
        async with asyncio.timeout(TOLD_WITHIN_S):
            await worker.init_device(AUTHORITY)
    await worker.close()


async def test_control_call_that_a_worker_refuses_is_no_loss(servicer):
    """A worker that says itself that something is not to be had is not called disconnected."""
    servicer.refusal = Unavailable("cannot resolve the tensor endpoint nowhere:1")
    async with serving(servicer, "127.0.0.1:0") as address:
        worker = RemoteWorker(address)
        with pytest.raises(Unavailable, match=r"^cannot resolve the tensor endpoint") as caught:
            await worker.connect_peers(AUTHORITY, GENERATION, ())
        assert type(caught.value) is Unavailable
        await worker.close()


async def test_closing_is_no_loss(servicer):
    """Whoever lets go of a worker is not told that it is lost; open steps still end."""
    told: list[ServiceError] = []
    async with serving(servicer, "127.0.0.1:0") as address:
        worker = RemoteWorker(address)
        worker.on_lost(told.append)
        await worker.connect_peers(AUTHORITY, GENERATION, ())
        step = worker.submit_step(SchedulerOutput(step_id=step_id(1), base_step=0), sample=False)
        await servicer.has_step.wait()
        await worker.close()
    with pytest.raises(WorkerLost):
        await step
    assert told == []
