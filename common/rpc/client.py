"""Client channels with the limits and keepalive rules of this cluster, and calls that raise service errors."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from common.rpc.server import MAX_MESSAGE_BYTES
from common.rpc.status import service_errors

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT", covariant=True)


def client_options(max_message_bytes: int) -> tuple[tuple[str, int], ...]:
    """Channel arguments of a client; gRPC ignores a misspelt key in silence."""
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # A silent connection is probed, so that a machine that vanished without a reset is found.
        # The interval stays above the shortest one our servers ask for.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A step must never run twice because a library thought it safe to send it again.
        ("grpc.enable_retries", 0),
        # Channels to one address share neither connection nor back-off with each other.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # A worker that was restarted may have another address under the same name, and by default the
        # name is looked up once in 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    )


def connect(address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Channel:
    """A channel to HOST:PORT (or a gRPC target such as "dns:///name:port"), without TLS.

    It connects with the first call; the caller closes it.
    """
    return grpc.aio.insecure_channel(
        address,
        options=client_options(max_message_bytes),
        compression=grpc.Compression.NoCompression,
    )


async def invoke(
    method: Callable[..., Awaitable[ResponseT]],
    request: object,
    *,
    timeout: float | None,  # noqa: ASYNC109 - the deadline travels to the server, it is no local timer
    wait_for_ready: bool = False,
) -> ResponseT:
    """Call a unary stub method with a deadline in seconds; failures are raised as service errors.

    `timeout` None: without a deadline, for phases of a step, which end with the worker.
    `wait_for_ready`: a server that refuses connections is tried again until the deadline.
    """
    with service_errors():
        return await method(request, timeout=timeout, wait_for_ready=wait_for_ready)
