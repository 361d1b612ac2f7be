"""Builds and binds gRPC servers with the limits and keepalive rules of this cluster."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import grpc
from grpc_reflection.v1alpha import reflection

from common.config import split_address
from common.errors import ConfigError
from common.listening import listen

# Bytes. Control messages are small; inline tensors of a step must fit.
MAX_MESSAGE_BYTES = 256 << 20

# Bytes of what a client of the coordinator may ask, by gRPC or HTTP.
MAX_REQUEST_BYTES = 16 << 20

# Calls that have arrived and wait for the event loop; each holds its request and little else.
MAX_PENDING_CALLS = 1 << 16


class ProtoFile(Protocol):
    """The DESCRIPTOR of a generated module, whose class differs between protobuf's backends."""

    @property
    def services_by_name(self) -> Any:
        """The services of the file."""
        ...


def server_options(max_message_bytes: int) -> tuple[tuple[str, int], ...]:
    """Channel arguments of a server; gRPC ignores a misspelt key in silence."""
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # Clients of all makes ping idle and silent calls; the default server counts such pings as
        # strikes and closes the connection with "too many pings".
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two servers on one port would share its connections: the second bind must fail instead.
        ("grpc.so_reuseport", 0),
        # Beyond a thousand calls that no handler has taken up yet gRPC drops some at random as
        # CANCELLED; how many may wait is decided by handlers, which say so to their clients.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    )


def build_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> grpc.aio.Server:
    """A server without services and ports, compression off; call it inside the event loop."""
    return grpc.aio.server(
        interceptors=tuple(interceptors),
        options=server_options(max_message_bytes),
        compression=grpc.Compression.NoCompression,
    )


def bind(server: grpc.aio.Server, address: str) -> int:
    """Listen on HOST:PORT without TLS and return the port; port 0 picks a free one.

    Raises ConfigError when the address is malformed, taken, or not of this machine.
    """
    host, port = split_address("address", address)
    # gRPC does not say why it failed, and writes lines of its own to stderr.
    listen(host, port, backlog=1).close()
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: {error}") from error


def add_reflection(server: grpc.aio.Server, files: Iterable[ProtoFile]) -> None:
    """Let clients such as grpcurl list the services of these .proto files and their messages."""
    names = [service.full_name for file in files for service in file.services_by_name.values()]
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
