"""Asks a server for its health over grpc.health.v1, with the exit codes of grpc_health_probe.

Depends on gRPC alone, so that a probe that runs every few seconds starts quickly.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ProbeExit(IntEnum):
    """Exit codes, as grpc_health_probe numbers them."""

    SERVING = 0
    INVALID_ARGUMENTS = 1
    CONNECTION_FAILED = 2
    RPC_FAILED = 3
    UNHEALTHY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Where the certificates of an encrypted connection are; None: the system's or none."""

    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What to ask whom; timeouts in seconds, service "" asks for the process itself."""

    address: str
    service: str = ""
    connect_timeout: float = 1.0
    rpc_timeout: float = 1.0
    user_agent: str = "stepwire-probe"
    headers: tuple[tuple[str, str], ...] = ()
    use_gzip: bool = False
    tls: Tls | None = None


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as "1s", "500ms" or "1m30s"; ValueError when it is none."""
    parts = DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 1s, 500ms or 1m30s")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def parse_header(text: str) -> tuple[str, str]:
    """Name and value of "NAME: VALUE"; ValueError when there is no colon."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text!r} is not NAME:VALUE")
    return name.strip().lower(), value.strip()


def check_health(probe: Probe) -> tuple[ProbeExit, str]:
    """Connect and ask; returns the exit code and the line to print."""
    with _channel(probe) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=probe.connect_timeout)
        except grpc.FutureTimeoutError:
            message = f"failed to connect to {probe.address} within {probe.connect_timeout:g} s"
            return ProbeExit.CONNECTION_FAILED, message
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(  # pyright: ignore[reportAttributeAccessIssue] (ships no types)
                health_pb2.HealthCheckRequest(service=probe.service),
                timeout=probe.rpc_timeout,
                metadata=probe.headers,
            )
        except grpc.RpcError as error:
            return ProbeExit.RPC_FAILED, _explain(error, probe)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    if response.status != health_pb2.HealthCheckResponse.SERVING:
        return ProbeExit.UNHEALTHY, f'service unhealthy (responded with "{status}")'
    return ProbeExit.SERVING, f"status: {status}"


@contextmanager
def _channel(probe: Probe) -> Iterator[grpc.Channel]:
    options: list[tuple[str, str]] = [("grpc.primary_user_agent", probe.user_agent)]
    compression = grpc.Compression.Gzip if probe.use_gzip else grpc.Compression.NoCompression
    if probe.tls is None:
        channel = grpc.insecure_channel(probe.address, options, compression)
    else:
        if probe.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", probe.tls.server_name))
        channel = grpc.secure_channel(probe.address, _credentials(probe.tls), options, compression)
    try:
        yield channel
    finally:
        channel.close()


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    root, chain, key = (
        None if file is None else file.read_bytes()
        for file in (tls.ca_cert, tls.client_cert, tls.client_key)
    )
    return grpc.ssl_channel_credentials(root, key, chain)


def _explain(error: grpc.RpcError, probe: Probe) -> str:
    code = error.code()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"health rpc did not complete within {probe.rpc_timeout:g} s"
    return f"health rpc failed: {code.name}: {error.details()}"
