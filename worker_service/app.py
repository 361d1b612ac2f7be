"""Composition root of a worker process: the only place that wires its parts together."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from stepwire.v1 import worker_pb2
from stepwire.v1.worker_pb2_grpc import add_WorkerServicer_to_server

from common.call_times import CALL_METRICS, CallTimes
from common.channels.zmq_channel import ZmqChannels
from common.clock import SystemClock
from common.config import WorkerConfig, join_address, split_address
from common.errors import ServiceError
from common.health import HealthBoard
from common.logs import get_logger
from common.metrics import TableCollector, new_registry
from common.metrics_listener import metrics_listener
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import add_reflection, bind, build_server
from common.tasks import TaskSupervisor
from common.tracing import make_tracer
from worker_service.ending import Ending
from worker_service.lifecycle import State
from worker_service.metrics import WORKER_METRICS, read_worker_state
from worker_service.readiness import Readiness
from worker_service.runner.model_runner import ModelRunner
from worker_service.servicer import WorkerServicer
from worker_service.watchdog import Watchdog
from worker_service.worker import Worker

logger = get_logger(__name__)

# Seconds: the event loop answers health checks while the device thread runs Python, so it must not
# wait the default 5 ms for the interpreter lock.
SWITCH_INTERVAL_SECONDS = 0.0005
STOP_GRACE_SECONDS = 1.0
CLOSE_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Where a worker that has started is reached, and its random id.

    metrics_address is empty when metrics are served nowhere.
    """

    address: str
    tensor_endpoint: str
    incarnation: str
    metrics_address: str = ""


async def run_worker(
    config: WorkerConfig,
    *,
    exit_with_stdin: bool,
    announce: Callable[[Ready], None],
    make_runner: Callable[..., ModelRunner],
) -> int:
    """Serve until it is time to end and return the exit code; `announce` is called when ready.

    `make_runner` takes what ModelRunner takes. Raises ConfigError when an address or the device
    cannot be had.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    async with AsyncExitStack() as held:
        channels = ZmqChannels(config.tensor_bind, config.tensor_advertise)
        held.callback(channels.close)
        tracer = make_tracer(config.otlp_traces_endpoint, service="stepwire-worker")
        held.push_async_callback(asyncio.to_thread, tracer.close)
        registry, calls = new_registry(), CallTimes()
        metrics = metrics_listener(config.metrics_listen, registry)
        held.push_async_callback(metrics.stop)
        ending = Ending(drain_timeout=config.drain_timeout)
        health = HealthBoard()
        readiness = Readiness(health)
        server = build_server(interceptors=[ServiceInterceptor(calls=calls)])
        port = bind(server, config.listen)
        make_worker = partial(
            Worker,
            config,
            channels,
            make_runner=make_runner,
            tracer=tracer,
        )
        worker = _make_worker(make_worker, readiness, ending)
        _add_services(server, worker, health)
        _tell(registry, worker, channels, calls)
        await metrics.start()
        await server.start()
        readiness.started()
        ending.watch_signals()
        if exit_with_stdin:
            ending.watch_stdin(epoch=lambda: worker.epoch)
        announce(
            Ready(
                address=_reachable_at(config, port),
                tensor_endpoint=channels.endpoint,
                incarnation=worker.incarnation,
                metrics_address=metrics.address,
            )
        )
        async with TaskSupervisor() as tasks:
            tasks.start("watchdog", _watchdog(config, worker, readiness, ending).run())
            exit_code = await ending.wait()
        readiness.ended()
        await _stop(server, worker, exit_code)
        return exit_code


def _tell(
    registry: CollectorRegistry, worker: Worker, channels: ZmqChannels, calls: CallTimes
) -> None:
    """Let the registry tell what worker, channels and calls know."""
    registry.register(TableCollector(CALL_METRICS, lambda: calls))
    registry.register(TableCollector(WORKER_METRICS, lambda: read_worker_state(worker, channels)))


def _make_worker(
    make_worker: Callable[..., Worker], readiness: Readiness, ending: Ending
) -> Worker:
    def state_changed(state: State) -> None:
        readiness.state_changed(state)
        if state.is_in_generation:
            ending.hold()
        else:
            ending.release()

    def lost(error: ServiceError) -> None:
        readiness.ended()
        ending.device_lost(str(error))

    worker = make_worker(on_state=state_changed)
    worker.on_lost(lost)
    return worker


def _watchdog(
    config: WorkerConfig, worker: Worker, readiness: Readiness, ending: Ending
) -> Watchdog:
    return Watchdog(
        worker.board,
        SystemClock(),
        hang_exit=config.hang_exit,
        is_over=lambda step_id: not worker.is_current(step_id),
        on_hung=readiness.hung,
        on_stuck=ending.device_stuck,
    )


def _add_services(server: grpc.aio.Server, worker: Worker, health: HealthBoard) -> None:
    add_WorkerServicer_to_server(WorkerServicer(worker), server)
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer(), server)
    add_reflection(server, [worker_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR])


def _reachable_at(config: WorkerConfig, port: int) -> str:
    """HOST:PORT for others: as advertised, or the host listened on with the port that was free."""
    if config.advertise is not None:
        return config.advertise
    host, _ = split_address("listen", config.listen)
    return join_address(host, port)


async def _stop(server: grpc.aio.Server, worker: Worker, exit_code: int) -> None:
    """Refuse new calls, let go of the device, and leave hard when a kernel does not return."""
    closing = asyncio.ensure_future(worker.close())
    await server.stop(STOP_GRACE_SECONDS)
    try:
        await asyncio.wait_for(closing, CLOSE_TIMEOUT_SECONDS)
    except TimeoutError:
        # The interpreter cannot be torn down under a running kernel without crashing.
        logger.warning("device still busy, leaving without it")
        os._exit(exit_code)
