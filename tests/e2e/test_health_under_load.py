"""Health while the workers compute: answered by every process, rightly, and long before the step ends."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.health import INFERENCE, LIVENESS, WORKER, WORKER_STEPS
from coordinator.client import AsyncClient
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import worker_processes

PROMPT_TOKENS = 4000
ANSWERED_WITHIN_S = 5.0
LEAST_ROUNDS = 3


@pytest.fixture(scope="module", params=["uniproc", "local", "remote"])
def server(request, tmp_path_factory) -> Iterator[RunningCoordinator]:
    """A coordinator of each executor whose model takes its time for a long prompt."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = write_tiny_llama(folder, num_layers=8, hidden=128, max_position_embeddings=4096)
    flags = {"model": str(model), "executor": request.param, "max_num_batched_tokens": 4096}
    with ExitStack() as stack:
        if request.param == "local":
            flags |= {"pp": 2}
        if request.param == "remote":
            workers = stack.enter_context(worker_processes(2))
            flags |= {"workers": ",".join(worker.address for worker in workers)}
        yield stack.enter_context(running_coordinator(flags))


async def test_health_is_right_while_one_long_step_runs(server):
    """Every name serves and an unknown one is NOT_FOUND, several times before the step is answered."""
    names_by_address = {server.grpc_address: [LIVENESS, INFERENCE]} | {
        worker.address: [LIVENESS, WORKER, WORKER_STEPS]
        for worker in server.client.status().workers
        if worker.address
    }
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(server.grpc_address))
        stubs = {
            address: health_pb2_grpc.HealthStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(address))
            )
            for address in names_by_address
        }
        answer = asyncio.create_task(client.complete([65] * PROMPT_TOKENS, max_tokens=1))
        num_rounds = 0
        while not answer.done():
            for address, names in names_by_address.items():
                for name in names:
                    assert await check(stubs[address], name) == "SERVING"
                assert await check(stubs[address], "no.such.Service") == "NOT_FOUND"
            num_rounds += not answer.done()
        assert num_rounds >= LEAST_ROUNDS
        assert (await answer).num_prompt_tokens == PROMPT_TOKENS


async def check(stub: health_pb2_grpc.HealthStub, name: str) -> str:
    """The status of a name, or the code of the error."""
    try:
        request = health_pb2.HealthCheckRequest(service=name)
        reply = await stub.Check(request, timeout=ANSWERED_WITHIN_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
