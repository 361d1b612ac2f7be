"""Real gRPC on an abstract unix socket: no port to choose, no file to clean, a few milliseconds."""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from common.rpc.client import connect
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import build_server

ServicerAdder = Callable[[grpc.aio.Server], object]


@asynccontextmanager
async def served(
    *adders: ServicerAdder, interceptors: Sequence[grpc.aio.ServerInterceptor] | None = None
) -> AsyncGenerator[grpc.aio.Channel]:
    """Serve what the adders put on a server, and yield a channel to it.

    An adder takes the server: `lambda server: add_WorkerServicer_to_server(servicer, server)`.
    """
    server = build_server(
        interceptors=[ServiceInterceptor()] if interceptors is None else interceptors
    )
    for add in adders:
        add(server)
    address = f"unix-abstract:stepwire-{uuid.uuid4().hex}"
    server.add_insecure_port(address)
    await server.start()
    channel = connect(address)
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(grace=None)
