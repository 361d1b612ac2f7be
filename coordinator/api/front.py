"""Both ports of a coordinator: gRPC and HTTP, up before the engine is and until it has ended."""

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire.v1 import cluster_pb2, cluster_pb2_grpc, inference_pb2, inference_pb2_grpc

from common.call_times import CallTimes
from common.clock import Clock
from common.config import ServeConfig, join_address
from common.health import INFERENCE, LIVENESS, HealthBoard
from common.metrics_listener import MetricsListener, NoMetricsListener, metrics_listener
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import MAX_REQUEST_BYTES, add_reflection, bind, build_server
from common.tasks import TaskSupervisor
from coordinator.api.cluster_servicer import ClusterServicer
from coordinator.api.console_feed import ConsoleFeed
from coordinator.api.console_routes import ConsoleRoutes
from coordinator.api.http_server import HttpServer
from coordinator.api.http_times import HttpTimes
from coordinator.api.inference_servicer import InferenceServicer
from coordinator.api.metrics import MetricsRoute, coordinator_registry
from coordinator.api.openai_routes import OpenAIRoutes, build_http_app
from coordinator.api.serving_state import ServingState
from coordinator.api.vllm_servicer import VllmServicer
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.gate import EngineGate
from coordinator.engine.measures import Measures

GRACE_SECONDS = 2.0


class Front:
    """Answers health, status and requests; what cannot be served yet is refused as Unavailable."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        gate: EngineGate,
        health: HealthBoard,
        read_status: Callable[[], ClusterStatus],
        measures: Measures,
        version: str,
        clock: Clock,
    ) -> None:
        """Make the servers; nothing listens yet. measures is read when metrics are asked for."""
        self._config = config
        self._health = health
        calls, http_times = CallTimes(), CallTimes()
        self._server = build_server(
            interceptors=[ServiceInterceptor(clock, calls)], max_message_bytes=MAX_REQUEST_BYTES
        )
        vllm = VllmServicer(gate, read_status=read_status, version=version, clock=clock)
        _add_services(self._server, gate, health, read_status, vllm)
        routes = OpenAIRoutes(
            gate, is_healthy=lambda: health.is_serving(INFERENCE), version=version, clock=clock
        )
        self._http_app = build_http_app(routes)
        self._registry = coordinator_registry(
            lambda: ServingState(
                status=read_status(), measures=measures, max_model_len=gate.max_model_len
            ),
            calls=calls,
            http=http_times,
        )
        self._http_app.add_middleware(HttpTimes, times=http_times, clock=clock)
        self._http_app.include_router(MetricsRoute(self._registry).router())
        self._metrics: MetricsListener | NoMetricsListener = NoMetricsListener()
        self._console = ConsoleFeed(read_status, version=version, clock=clock)
        self._http_app.include_router(ConsoleRoutes(self._console).router())
        self._http: HttpServer | None = None
        self._http_task: asyncio.Task[None] | None = None
        self.grpc_address = ""
        """HOST:PORT of gRPC, once started."""
        self.http_url: str | None = None
        """Where HTTP is served, None when it is turned off."""

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of the port for metrics alone, empty when there is none."""
        return self._metrics.address

    async def start(self, tasks: TaskSupervisor) -> None:
        """Listen on all ports; raises ConfigError naming the one that cannot be had."""
        host = self._config.http_host
        if self._config.http_port >= 0:
            self._http = HttpServer(self._http_app, host=host, port=self._config.http_port)
            self.http_url = f"http://{join_address(host, self._http.port)}"
        try:
            self._metrics = metrics_listener(self._config.metrics_listen, self._registry)
            port = bind(self._server, join_address(host, self._config.grpc_port))
        except BaseException:
            await self._metrics.stop()
            if self._http is not None:
                self._http.close()
            raise
        self.grpc_address = join_address(host, port)
        self._health.set(LIVENESS, serving=True)
        await self._metrics.start()
        await self._server.start()
        if self._http is not None:
            self._http_task = tasks.start("http server", self._http.serve())
            tasks.start("console feed", self._console.run())

    async def stop(self) -> None:
        """Let answers that are being written end, then close both ports."""
        self._console.close()
        if self._http is not None:
            self._http.stop()
        await self._server.stop(GRACE_SECONDS)
        await self._metrics.stop()
        if self._http_task is not None:
            await asyncio.wait({self._http_task})


def _add_services(
    server: grpc.aio.Server,
    gate: EngineGate,
    health: HealthBoard,
    read_status: Callable[[], ClusterStatus],
    vllm: VllmServicer,
) -> None:
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(gate), server)
    cluster_pb2_grpc.add_ClusterServicer_to_server(ClusterServicer(read_status), server)
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer(), server)
    files = inference_pb2.DESCRIPTOR, cluster_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR
    add_reflection(server, (*files, vllm.add_to(server)))
