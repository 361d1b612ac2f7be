"""Servers and clients keep to the cluster's rules: ports, limits, keepalive, request ids, leaving clients."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import ConfigError, DeadlineExceeded, NotFound, Overloaded, ServiceError
from common.health import HealthBoard
from common.logs import JsonFormatter
from common.rpc.client import client_options, connect, invoke
from common.rpc.server import add_reflection, bind, build_server, server_options
from common.rpc.status import service_errors
from tests.fakes.noted_spans import CLIENT
from tests.fakes.served import served

CHECK = health_pb2.HealthCheckRequest()
BURST = 2500
"""More than the thousand waiting calls from which gRPC begins to drop some unless told otherwise."""
LIBRARY = Path(cygrpc.__file__).read_bytes()


def adder(servicer: health_pb2_grpc.HealthServicer):
    """What `served` takes, for a health servicer."""
    return lambda server: health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


def serving_board() -> HealthBoard:
    """A board on which "" serves."""
    board = HealthBoard()
    board.set("", serving=True)
    return board


@pytest.mark.parametrize("key", [key for key, _ in server_options(1) + client_options(1)])
def test_option_is_known_to_grpc(key):
    """Every channel argument is one that gRPC's compiled library knows; it ignores others in silence."""
    assert key.encode() + b"\0" in LIBRARY
    assert key.encode() + b"x\0" not in LIBRARY


@asynccontextmanager
async def watched(server: grpc.aio.Server) -> AsyncGenerator["asyncio.Future[object]"]:
    """A silent Watch on a server under a client that pings as fast as gRPC lets it."""
    health_pb2_grpc.add_HealthServicer_to_server(serving_board().servicer(), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    options = {**dict(client_options(1 << 20)), "grpc.keepalive_time_ms": 20}
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=list(options.items()))
    call = health_pb2_grpc.HealthStub(channel).Watch(CHECK)
    await call.read()
    silent = asyncio.ensure_future(call.read())
    try:
        yield silent
    finally:
        silent.cancel()
        await channel.close()
        await server.stop(grace=None)


async def test_server_tolerates_pings():
    """Pings that make a default server hang up leave a silent call on ours open."""
    async with watched(grpc.aio.server()) as on_default, watched(build_server()) as on_ours:
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await asyncio.wait_for(on_default, 30)
        assert not on_ours.done()


def test_client_pings_no_faster_than_servers_ask():
    """Our own keepalive interval is above the shortest one that our servers announce."""
    shortest = dict(server_options(1))["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(client_options(1))["grpc.keepalive_time_ms"] > shortest


async def test_bind_picks_and_refuses_ports():
    """Port 0 gives a free port; a second server on it is refused by a ConfigError naming it."""
    first, second = build_server(), build_server()
    port = bind(first, "127.0.0.1:0")
    assert port > 0
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        bind(second, f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        bind(second, "nonsense")
    await first.stop(grace=None)
    await second.stop(grace=None)


async def test_every_call_of_a_burst_is_answered():
    """Far more calls at once than the event loop has taken up are served, none dropped on the way."""
    async with served(adder(serving_board().servicer())) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Check(CHECK, timeout=60) for _ in range(BURST)]
        codes = Counter([await call.code() for call in calls])
    assert codes == {grpc.StatusCode.OK: BURST}


async def test_message_limit():
    """A message beyond the limit is refused by the receiver and not delivered."""
    server = build_server(max_message_bytes=1000)
    health_pb2_grpc.add_HealthServicer_to_server(serving_board().servicer(), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(Overloaded, match="larger than max"):
            await invoke(stub.Check, health_pb2.HealthCheckRequest(service="x" * 2000), timeout=5)
    await server.stop(grace=None)


async def test_megabytes_pass():
    """Messages far beyond gRPC's default of 4 MiB pass both ways, as inline tensors need."""

    class Echo(health_pb2_grpc.HealthServicer):
        """Fails with what it was asked, which proves that it arrived."""

        async def Check(self, request, context):
            """Tell the size."""
            raise ServiceError(f"{len(request.service)} bytes")

    async with served(adder(Echo())) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(ServiceError, match=f"{32 << 20} bytes"):
            await invoke(
                stub.Check, health_pb2.HealthCheckRequest(service="x" * (32 << 20)), timeout=20
            )


async def test_reflection_lists_services():
    """A reflection client sees the services by name."""
    async with served(lambda server: add_reflection(server, [health_pb2.DESCRIPTOR])) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await call.done_writing()
        listed = await call.read()
    names = {service.name for service in listed.list_services_response.service}
    assert names == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_deadline():
    """A call past its deadline is DeadlineExceeded."""

    class Slow(health_pb2_grpc.HealthServicer):
        """Never answers."""

        async def Check(self, request, context):
            """Wait for ever."""
            await asyncio.Event().wait()

    async with served(adder(Slow())) as channel:
        with pytest.raises(DeadlineExceeded):
            await invoke(health_pb2_grpc.HealthStub(channel).Check, CHECK, timeout=0.1)


class Endless(health_pb2_grpc.HealthServicer):
    """Watch answers once and then waits; notes that its generator was closed."""

    def __init__(self) -> None:
        self.was_closed = asyncio.Event()

    async def Watch(self, request, context):
        """Answer once."""
        try:
            yield health_pb2.HealthCheckResponse()
            await asyncio.Event().wait()
        finally:
            self.was_closed.set()


async def test_leaving_client_closes_the_generator():
    """When a client cancels its stream, the handler's generator is closed, not left to the collector."""
    endless = Endless()
    async with served(adder(endless)) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(CHECK)
        await call.read()
        call.cancel()
        await asyncio.wait_for(endless.was_closed.wait(), 5)


async def test_request_id_and_trace_reach_the_log(caplog):
    """Lines logged while a call is handled carry its x-request-id and its trace, those of others none."""
    seen: list[str] = []

    class Noting(health_pb2_grpc.HealthServicer):
        """Formats a line the way the service's log would."""

        async def Check(self, request, context):
            """Note the line."""
            record = logging.makeLogRecord({"msg": "handled"})
            seen.append(JsonFormatter("test").format(record))
            return health_pb2.HealthCheckResponse()

    caplog.set_level(logging.DEBUG, logger="common.rpc")
    async with served(adder(Noting())) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        metadata = (("x-request-id", "r-1"), ("traceparent", CLIENT.traceparent))
        await stub.Check(CHECK, metadata=metadata, timeout=5)
        await stub.Check(CHECK, timeout=5)
    lines = [json.loads(line) for line in seen]
    assert [line.get("request_id") for line in lines] == ["r-1", None]
    assert [line.get("trace_id") for line in lines] == [CLIENT.trace_id, None]
    ended = [record for record in caplog.records if record.message == "rpc ended"]
    assert [record.outcome for record in ended] == ["OK", "OK"]
    assert ended[0].method == "/grpc.health.v1.Health/Check"


async def test_health_check():
    """Check tells each known name's state and refuses an unknown one with NOT_FOUND."""
    board = serving_board()
    board.set("stepwire.v1.Worker.Steps", serving=False)
    async with served(adder(board.servicer())) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name, status in (("", "SERVING"), ("stepwire.v1.Worker.Steps", "NOT_SERVING")):
            answer = await invoke(
                stub.Check, health_pb2.HealthCheckRequest(service=name), timeout=5
            )
            assert answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        with pytest.raises(NotFound, match="nonsense"):
            await invoke(stub.Check, health_pb2.HealthCheckRequest(service="nonsense"), timeout=5)


async def test_health_watch():
    """Watch stays open, tells changes only, and learns of a name that becomes known."""
    board = HealthBoard()
    async with served(adder(board.servicer())) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="late")
        )
        told = [(await call.read()).status]
        board.set("late", serving=False)
        told.append((await call.read()).status)
        board.set("late", serving=False)
        board.set("other", serving=True)
        board.set("late", serving=True)
        told.append((await call.read()).status)
        call.cancel()
    statuses = health_pb2.HealthCheckResponse
    assert told == [statuses.SERVICE_UNKNOWN, statuses.NOT_SERVING, statuses.SERVING]


async def test_service_errors_of_streams():
    """Reading a stream inside `service_errors` raises the class that ended it."""

    class Refusing(health_pb2_grpc.HealthServicer):
        """Refuses Watch."""

        async def Watch(self, request, context):
            """Refuse before the first answer."""
            raise Overloaded("full")
            yield

    async with served(adder(Refusing())) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(CHECK)
        with pytest.raises(Overloaded, match="full"), service_errors():
            await call.read()
