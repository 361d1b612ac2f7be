"""Composition root of the coordinator: the only place that wires its parts together."""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version

from common.clock import Clock, SystemClock
from common.config import CoordinatorConfig
from common.config_loader import cache_folder
from common.health import INFERENCE, HealthBoard
from common.model_folder import ModelFolder, read_model_folder, resolve_model
from common.tasks import TaskSupervisor
from common.tracing import make_tracer
from coordinator.api.front import Front
from coordinator.awaited_model import await_model
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.engine import Engine
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import MAX_SEQUENCES, ServedModel
from coordinator.engine.measures import Measures
from coordinator.engine.replica import Replica
from coordinator.executors.launch import worker_fleet
from coordinator.executors.placement import stage_layers
from coordinator.executors.topology import WorkerTopology
from coordinator.shutdown import ShutdownRequest
from coordinator.text.same_vocabulary import check_same_vocabulary
from coordinator.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What serves where, once requests are accepted; http_url None: HTTP is turned off."""

    model: str
    grpc_address: str
    http_url: str | None
    workers: tuple[WorkerTopology, ...]


async def run_coordinator(
    config: CoordinatorConfig, *, ready: Callable[[Serving], None] | None = None
) -> int:
    """Serve until a signal and return the exit code; `ready` is called when requests are accepted.

    Raises the ServiceError that kept it from starting, and Fenced when a worker obeys a newer
    coordinator. A second signal ends the process at once.
    """
    shutdown = ShutdownRequest()
    shutdown.watch_signals()
    try:
        async with TaskSupervisor() as tasks:
            coordinator = Coordinator(config, tasks, clock=SystemClock())
            await coordinator.serve_until(shutdown, ready)
    finally:
        shutdown.unwatch_signals()
    return 0


class Coordinator:
    """One coordinator process: two ports, one model, one replica."""

    def __init__(self, config: CoordinatorConfig, tasks: TaskSupervisor, *, clock: Clock) -> None:
        """Wire what exists before the workers do."""
        self._config = config
        self._tasks = tasks
        self._clock = clock
        self._health = HealthBoard()
        self._health.set(INFERENCE, serving=False)
        self._gate = EngineGate()
        self._model_name = config.model.served_model_name or config.model.model
        self._measures = Measures()
        self._tracer = make_tracer(
            config.serve.otlp_traces_endpoint, service="stepwire-coordinator"
        )
        self._detail = "reading the model's folder"
        self._replica: Replica | None = None
        self._replica_task: asyncio.Task[None] | None = None
        self.front = Front(
            config.serve,
            gate=self._gate,
            health=self._health,
            read_status=self.status,
            measures=self._measures,
            version=version("stepwire"),
            clock=clock,
        )

    async def serve_until(
        self, shutdown: ShutdownRequest, ready: Callable[[Serving], None] | None = None
    ) -> None:
        """Start, serve until asked to end, drain, and let go of everything."""
        await self.front.start(self._tasks)
        try:
            await shutdown.interrupt(self._start())
            if not shutdown.is_asked:
                self._announce(ready)
                await shutdown.wait()
            await self._drain()
        finally:
            self._health.set(INFERENCE, serving=False)
            if self._replica is not None:
                await self._replica.shutdown()
            await self.front.stop()
            await asyncio.to_thread(self._tracer.close)

    def status(self) -> ClusterStatus:
        """The topology and its state now."""
        if self._replica is None:
            return ClusterStatus(model=self._model_name, detail=self._detail)
        return self._replica.status(self._model_name)

    async def _start(self) -> None:
        folder = await await_model(
            lambda: asyncio.to_thread(_find_model, self._config),
            patience=self._config.model.wait_for_model,
            on_missing=self._note_missing,
        )
        self._model_name = self._config.model.served_model_name or folder.name
        # Before processes are started for stages that would stay empty.
        stage_layers(folder, self._config, num_stages=self._config.cluster.num_stages)
        self._config = await asyncio.to_thread(_with_draft_folder, self._config, folder)
        self._replica = Replica(
            self._config,
            folder,
            fleet=worker_fleet(self._config),
            clock=self._clock,
            measures=self._measures,
            on_serving_changed=self._serving_changed,
        )
        # Read while the workers start, which takes longer; what fails first ends both.
        starting = asyncio.create_task(self._replica.start(), name="start replica")
        reading = asyncio.create_task(
            asyncio.to_thread(Tokenizer.from_folder, folder), name="read tokenizer"
        )
        try:
            _, tokenizer = await asyncio.gather(starting, reading)
        finally:
            starting.cancel()
            reading.cancel()
            await asyncio.gather(starting, reading, return_exceptions=True)
        self._gate.open(self._engine(self._replica, folder, tokenizer), model_folder=folder.path)
        self._replica_task = self._tasks.start("replica", self._replica.run())
        await self._replica.loop.wait_until_serving()
        # What stands now stands until the end: the collector need not look at it again.
        gc.collect()
        gc.freeze()

    def _note_missing(self, cause: str) -> None:
        detail = f"waiting for the model: {cause}"
        if detail != self._detail:
            logger.info("replica waits", extra={"detail": detail})
        self._detail = detail

    def _engine(self, replica: Replica, folder: ModelFolder, tokenizer: Tokenizer) -> Engine:
        model = ServedModel(
            name=self._model_name,
            max_model_len=replica.max_sequence_len,
            vocab_size=folder.vocab_size,
            created=int(self._clock.unix_time()),
            max_sequences=min(MAX_SEQUENCES, self._config.schedule.max_waiting),
            logits_processors=replica.logits_processors,
            eos_token_ids=folder.eos_token_ids,
        )
        return Engine(
            model=model,
            tokenizer=tokenizer,
            loop=replica.loop,
            clock=self._clock,
            measures=self._measures,
            tracer=self._tracer,
        )

    def _serving_changed(self, is_serving: bool) -> None:  # noqa: FBT001 - a state, told by value
        self._health.set(INFERENCE, is_serving)

    def _announce(self, ready: Callable[[Serving], None] | None) -> None:
        serving = Serving(
            model=self._model_name,
            grpc_address=self.front.grpc_address,
            http_url=self.front.http_url,
            workers=self.status().workers,
        )
        logger.info(
            "serving",
            extra={
                "model": serving.model,
                "grpc": serving.grpc_address,
                "http": serving.http_url,
                "metrics": self.front.metrics_address,
                "stages": len(serving.workers),
            },
        )
        if ready is not None:
            ready(serving)

    async def _drain(self) -> None:
        if self._replica is None or self._replica_task is None:
            return
        logger.info("draining", extra={"open_requests": self._replica.loop.num_open})
        await self._replica.drain(self._config.serve.drain_timeout)
        # Its last steps must have been let go of before the workers are.
        await asyncio.wait({self._replica_task})


def _with_draft_folder(config: CoordinatorConfig, model: ModelFolder) -> CoordinatorConfig:
    """The configuration with the draft model's folder in place of its name, after it was checked.

    Remote workers find it on their own machines, under the name the user gave.
    """
    name = config.speculation.draft_model
    if name is None:
        return config
    draft = read_model_folder(resolve_model(name, cache=cache_folder()))
    check_same_vocabulary(model, draft)
    if config.cluster.executor_kind == "remote":
        return config
    return replace(config, speculation=replace(config.speculation, draft_model=str(draft.path)))


def _find_model(config: CoordinatorConfig) -> ModelFolder:
    return read_model_folder(resolve_model(config.model.model, cache=cache_folder()))
