"""The gRPC client against real coordinators: every executor, text, errors, leaving, losing a worker."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from common.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable
from common.requests import FinishReason
from coordinator.client import AsyncClient
from coordinator.engine.generation import ChatTurn
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import worker_processes

SETTINGS = {"max_num_seqs": 2, "max_num_batched_tokens": 256, "kv_cache_bytes": 4 << 20}
HELLO = [ChatTurn(role="user", content="hello")]
TOLD_WITHIN_SECONDS = 2.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama called tiny."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)


@pytest.fixture(scope="module")
def server(model) -> Iterator[RunningCoordinator]:
    """A coordinator with two local workers, two sequences at a time."""
    flags = SETTINGS | {"model": str(model), "executor": "local", "pp": 2}
    with running_coordinator(flags) as running:
        yield running


def test_an_answer_streamed_and_not(server):
    """Greedy text is the same in one piece and in deltas; the counts are right."""
    options = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    deltas = list(server.client.generate("hello", **options))
    whole = server.client.complete("hello", **options)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert whole.finish_reason is FinishReason.LENGTH
    assert (whole.num_prompt_tokens, whole.num_generated_tokens) == (5, 12)
    assert bytes(id for id in whole.token_ids if id < 256).decode(errors="replace") == whole.text


def test_a_conversation_and_token_ids(server):
    """A chat equals the completion of its rendered tokens."""
    chat = server.client.chat(HELLO, max_tokens=6, temperature=0.0)
    rendered = [258, *b"user\nhello", 259, *b"\n", 258, *b"assistant\n"]
    assert server.client.complete(rendered, max_tokens=6, temperature=0.0).text == chat.text


@pytest.mark.parametrize(
    ("prompt", "options", "error", "match"),
    [
        ("", {}, InvalidRequest, "prompt is empty"),
        ([9999], {}, InvalidRequest, "vocabulary"),
        ("x" * 3000, {}, InvalidRequest, "at most"),
        ("x", {"max_tokens": 0}, InvalidRequest, "max_tokens"),
        ("x", {"temperature": float("nan")}, InvalidRequest, "temperature"),
        ("x", {"top_p": 1.5}, InvalidRequest, "top_p"),
        ("x", {"stop": ["y"] * 17}, InvalidRequest, "stop"),
        ("x", {"model": "huge"}, NotFound, "huge"),
    ],
)
def test_bad_input_is_refused(server, prompt, options, error, match):
    """The error's class and text reach the client, and nothing runs."""
    with pytest.raises(error, match=match):
        server.client.complete(prompt, **options)
    assert server.client.status().num_running == 0


def test_leaving_mid_stream_frees_the_blocks(server):
    """A client that closes its stream gives all blocks back before its tokens have ended."""
    before = server.client.status().num_generated_tokens
    stream = server.client.generate("hello", max_tokens=1500, ignore_eos=True)
    next(stream)
    assert server.client.status().num_free_blocks < server.client.status().num_blocks
    stream.close()
    assert server.wait_until_idle().num_generated_tokens - before < 1500


async def test_leaving_before_the_first_token_frees_the_request(server):
    """A client cancelled while its request waits for its turn leaves nothing in the queue."""
    async with AsyncClient(server.grpc_address) as client:
        holders = [client.generate("x", max_tokens=1500, ignore_eos=True) for _ in range(2)]
        for holder in holders:
            await anext(holder)
        waiting = asyncio.create_task(client.complete("waiting"))
        await asyncio.to_thread(server.wait_until, lambda status: status.num_waiting == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        await asyncio.to_thread(server.wait_until, lambda status: status.num_waiting == 0)
        for holder in holders:
            await holder.aclose()
    await asyncio.to_thread(server.wait_until_idle)


async def test_abort_and_ids(server):
    """A running id cannot be used twice; abort ends it with its reason."""
    async with AsyncClient(server.grpc_address) as client:
        options = {"request_id": "mine", "max_tokens": 1500, "ignore_eos": True}
        async with aclosing(client.generate("x", **options)) as stream:
            await anext(stream)
            with pytest.raises(AlreadyExists):
                await client.complete("x", request_id="mine")
            await client.abort("mine")
            reasons = [delta.finish_reason async for delta in stream]
    assert reasons[-1] is FinishReason.ABORT


def test_the_status_tells_the_topology(server):
    """Both stages stand in order, and the layers meet."""
    status = server.client.status()
    assert (status.model, status.is_serving) == ("tiny", True)
    first, last = status.workers
    assert (first.rank.stage, last.rank.stage) == (0, 1)
    assert (first.first_layer, first.end_layer, last.end_layer) == (0, last.first_layer, 2)


def test_reflection_lists_the_services(server):
    """grpcurl and its like find every service."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    names = {"stepwire.v1.Inference", "stepwire.v1.Cluster", "grpc.health.v1.Health"}
    assert names | {"vllm.grpc.engine.VllmEngine"} <= set(services)


@pytest.mark.parametrize("name", ["", "stepwire.v1.Inference"])
def test_health_serves(server, name):
    """The process lives and takes requests."""
    assert health(server, name) == health_pb2.HealthCheckResponse.SERVING


def test_remote_workers_leave_the_coordinator_free_of_torch(model):
    """After a chat on remote workers the coordinator ends with 0, without torch or transformers."""
    with worker_processes(2) as workers:
        addresses = ",".join(worker.address for worker in workers)
        flags = SETTINGS | {"model": str(model), "executor": "remote", "workers": addresses}
        with running_coordinator(flags) as running:
            running.client.chat(HELLO, max_tokens=4)
            running.process.send_signal(signal.SIGTERM)
            output, _ = running.process.communicate(timeout=20)
        assert (running.process.returncode, output) == (0, "[]\n")


def test_a_drain_lets_running_requests_end(model):
    """After SIGTERM an open answer ends whole, a new one is refused, and the exit code is 0."""
    flags = SETTINGS | {"model": str(model), "executor": "local"}
    with running_coordinator(flags) as running:
        stream = running.client.generate("x", max_tokens=300, ignore_eos=True)
        next(stream)
        running.process.send_signal(signal.SIGTERM)
        running.wait_until(lambda status: not status.is_serving)
        with pytest.raises(Unavailable, match="shutting down"):
            running.client.complete("late")
        assert list(stream)[-1].num_generated_tokens == 300
        assert running.process.wait(20) == 0


def test_a_lost_worker_ends_requests_with_its_rank_and_cause(model):
    """A killed worker: open answers end as Unavailable naming it, health follows, nothing hangs."""
    flags = SETTINGS | {"model": str(model), "executor": "local", "pp": 2}
    with running_coordinator(flags) as running:
        stream = running.client.generate("x", max_tokens=1500, ignore_eos=True)
        next(stream)
        victim = psutil.Process(running.process.pid).children()[1]
        victim.kill()
        killed = time.monotonic()
        with pytest.raises(Unavailable, match=r"stage \d .*SIGKILL"):
            list(stream)
        assert time.monotonic() - killed < TOLD_WITHIN_SECONDS
        assert health(running, "stepwire.v1.Inference") == (
            health_pb2.HealthCheckResponse.NOT_SERVING
        )
        assert health(running, "") == health_pb2.HealthCheckResponse.SERVING
        assert httpx.get(f"{running.http_url}/health").status_code == 503
        with pytest.raises(Unavailable, match="SIGKILL"):
            running.client.complete("late")
        assert [bool(worker.cause) for worker in running.client.status().workers].count(True) == 1


def health(running: RunningCoordinator, name: str) -> int:
    """What the health service says of a name."""
    with grpc.insecure_channel(running.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
