"""What a coordinator says before it serves, and why it may not start. No worker exists here."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.clock import SystemClock
from common.config import ClusterConfig, CoordinatorConfig, ModelConfig, ServeConfig
from common.errors import ConfigError, ModelError, Unavailable
from common.rpc.client import connect
from common.speculation import DRAFT_MODEL, SpeculationConfig
from common.tasks import TaskSupervisor
from coordinator.app import Coordinator
from coordinator.client import AsyncClient
from coordinator.executors.progress import ReplicaPhase
from coordinator.shutdown import ShutdownRequest
from tests.fakes.byte_tokenizer import write_byte_tokenizer

NOBODY = "127.0.0.1:1"


@pytest.fixture
def model(tmp_path) -> Path:
    """A model folder with all but weights."""
    config = {"vocab_size": 260, "num_hidden_layers": 2, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(tmp_path)
    return tmp_path


def config(model: Path, **serve: int) -> CoordinatorConfig:
    """A coordinator whose one worker nobody started, on free ports."""
    return CoordinatorConfig(
        model=ModelConfig(model=str(model)),
        cluster=ClusterConfig(executor="remote", workers=(NOBODY,)),
        serve=ServeConfig(**({"grpc_port": 0, "http_port": 0} | serve)),
    )


@asynccontextmanager
async def waiting_coordinator(settings: CoordinatorConfig) -> AsyncIterator[Coordinator]:
    """A coordinator that waits for its workers, ended by request."""
    shutdown = ShutdownRequest()
    async with TaskSupervisor() as tasks:
        coordinator = Coordinator(settings, tasks, clock=SystemClock())
        tasks.start("coordinator", coordinator.serve_until(shutdown))
        async with asyncio.timeout(10):
            while not coordinator.front.grpc_address:  # noqa: ASYNC110 - the port opens in one step
                await asyncio.sleep(0.01)
        yield coordinator
        shutdown.ask()


async def test_health_tells_the_truth_while_workers_are_awaited(model):
    """The process lives, takes no requests yet, and says that it is starting."""
    async with waiting_coordinator(config(model)) as coordinator:
        address, url = coordinator.front.grpc_address, coordinator.front.http_url
        async with connect(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            statuses = [
                (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
                for name in ("", "stepwire.v1.Inference")
            ]
        async with AsyncClient(address) as client:
            with pytest.raises(Unavailable, match="starting"):
                await client.complete("x")
            async with asyncio.timeout(10):
                while (status := await client.status()).phase is ReplicaPhase.STARTING:  # noqa: ASYNC110 - another service
                    await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/health")).status_code == 503
            response = await http.post("/v1/completions", json={"prompt": "x"})
    assert statuses == [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    ]
    assert (status.is_serving, status.workers) == (False, ())
    assert (status.phase, status.detail) == (
        ReplicaPhase.WAITING,
        "waiting for stage 0 (have 0 of 1)",
    )
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_http_can_be_turned_off(model):
    """Port -1 serves gRPC alone."""
    async with waiting_coordinator(config(model, http_port=-1)) as coordinator:
        assert coordinator.front.http_url is None


@pytest.mark.parametrize("setting", ["grpc_port", "http_port"])
async def test_a_taken_port_is_named(model, setting):
    """A port that somebody listens on is a ConfigError naming it, and nothing stays open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            await start(config(model, **{setting: port}))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
async def test_a_model_that_cannot_be_read_is_named(model, missing):
    """A folder without one of its files ends the start with that file's name."""
    (model / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        await start(config(model))


async def test_stages_without_layers_are_refused_before_workers_start(model):
    """Nobody waits for workers that could hold nothing."""
    settings = config(model)
    many = ClusterConfig(executor="remote", workers=(NOBODY,) * 3)
    with pytest.raises(ConfigError, match=r"3 pipeline stages .* has 2"):
        await asyncio.wait_for(start(replace(settings, cluster=many)), 10)


async def test_a_draft_model_of_other_tokens_is_refused_before_workers_start(model, tmp_path):
    """Nobody waits for workers that would propose tokens the model does not have."""
    draft = tmp_path / "draft"
    draft.mkdir()
    config_file = json.loads((model / "config.json").read_text()) | {"vocab_size": 300}
    (draft / "config.json").write_text(json.dumps(config_file))
    speculation = SpeculationConfig(speculative_method=DRAFT_MODEL, draft_model=str(draft))
    settings = replace(config(model), speculation=speculation)
    with pytest.raises(ConfigError, match=r"--draft-model draft has a vocabulary of 300 tokens"):
        await asyncio.wait_for(start(settings), 10)


async def start(settings: CoordinatorConfig) -> None:
    """Start a coordinator that is expected to fail."""
    async with TaskSupervisor() as tasks:
        coordinator = Coordinator(settings, tasks, clock=SystemClock())
        await coordinator.serve_until(ShutdownRequest())
