"""A worker of a whole coordinator is killed: what becomes of every kind of open request, and of the process.

Both executors, both stages, while a prompt is computed and while tokens are generated.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from common.errors import Unavailable
from coordinator.client import AsyncClient
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import worker_processes

TOLD_WITHIN_S = 2.0
LONG = {"max_tokens": 3000, "ignore_eos": True}
CAUSES = {"local": "killed by SIGKILL", "remote": "connection closed"}
PROMPTS = {"prefill": [65] * 2000, "decode": [65]}
CASES = [
    ("local", 0, "decode"),
    ("local", 1, "prefill"),
    ("remote", 0, "prefill"),
    ("remote", 1, "decode"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that takes its time for a long prompt."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_llama(folder, num_layers=8, hidden=128, max_position_embeddings=4096)


@pytest.fixture
def server(request, model) -> Iterator[RunningCoordinator]:
    """Two stages under the executor asked for; two sequences at a time, so that others wait."""
    flags = {"model": str(model), "executor": request.param, "pp": 2, "max_num_seqs": 2}
    flags |= {"max_num_batched_tokens": 2048}
    with ExitStack() as stack:
        if request.param == "remote":
            workers = stack.enter_context(worker_processes(2))
            flags |= {"workers": ",".join(worker.address for worker in workers)}
        yield stack.enter_context(running_coordinator(flags))


@pytest.mark.parametrize(("server", "stage", "phase"), CASES, indirect=["server"])
async def test_every_open_request_ends_with_rank_and_cause(request, server, stage, phase):
    """gRPC, SSE and plain HTTP, running or waiting: each is told in time, and the process ends well."""
    executor = request.node.callspec.params["server"]
    told = re.compile(rf"stage {stage} \(127\.0\.0\.1:\d+\) lost: {CAUSES[executor]}")
    victim = process_listening_on(server.client.status().workers[stage].address)
    async with (
        AsyncClient(server.grpc_address) as client,
        httpx.AsyncClient(base_url=server.http_url, timeout=30) as http,
    ):
        prompt = PROMPTS[phase]
        answers = [
            asyncio.create_task(ended_with(error))
            for _ in range(2)
            for error in (by_grpc(client, prompt), by_sse(http, prompt), by_http(http, prompt))
        ]
        await asyncio.to_thread(server.wait_until, lambda status: status.num_waiting == 4)
        victim.kill()
        killed = time.monotonic()
        for ended, message in await asyncio.gather(*answers):
            assert ended - killed < TOLD_WITHIN_S
            assert told.search(message)
        assert (await http.get("/health")).status_code == 503
    assert not server.client.status().is_serving
    server.process.terminate()
    assert await asyncio.to_thread(server.process.wait, 20) == 0


async def by_grpc(client: AsyncClient, prompt: list[int]) -> str:
    """The error of a gRPC stream."""
    with pytest.raises(Unavailable) as caught:
        async for _ in client.generate(prompt, **LONG):
            pass
    return str(caught.value)


async def by_sse(http: httpx.AsyncClient, prompt: list[int]) -> str:
    """The last event of a stream over HTTP, or the body where the stream had not begun."""
    body = {"prompt": prompt, "stream": True, **LONG}
    last = ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            last = line or last
    return last


async def by_http(http: httpx.AsyncClient, prompt: list[int]) -> str:
    """The body of an answer in one piece, whose status is 503."""
    response = await http.post("/v1/completions", json={"prompt": prompt, **LONG})
    assert response.status_code == 503
    return response.text


async def ended_with(error: Awaitable[str]) -> tuple[float, str]:
    """When a request ended, on the monotonic clock, and with which error."""
    message = await error
    return time.monotonic(), message


def process_listening_on(address: str) -> psutil.Process:
    """The process of this machine that listens on HOST:PORT."""
    port = int(address.rpartition(":")[2])
    (listener,) = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    return psutil.Process(listener)
