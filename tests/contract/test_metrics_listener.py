"""Facts of the port where Prometheus reads a process that has no HTTP server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from common.errors import ConfigError
from common.metrics_listener import MetricsListener, NoMetricsListener, metrics_listener


@asynccontextmanager
async def listening() -> AsyncIterator[MetricsListener]:
    """A listener on a free port that tells one gauge."""
    registry = CollectorRegistry()
    Gauge("answer", "The answer.", registry=registry).set(42)
    listener = MetricsListener("127.0.0.1:0", registry)
    try:
        await listener.start()
        yield listener
    finally:
        await listener.stop()


async def test_metrics_are_read_over_http():
    """A plain GET, as Prometheus sends it, also with a query and kept connections."""
    async with listening() as listener, httpx.AsyncClient() as client:
        for query in ("", "?name[]=answer"):
            response = await client.get(f"http://{listener.address}/metrics{query}")
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/plain")
            assert response.text.splitlines()[-1] == "answer 42.0"


async def test_other_questions_are_refused():
    """Another path is not found, another method not allowed."""
    async with listening() as listener, httpx.AsyncClient() as client:
        assert (await client.get(f"http://{listener.address}/")).status_code == 404
        assert (await client.post(f"http://{listener.address}/metrics")).status_code == 405
        head = await client.head(f"http://{listener.address}/metrics")
        assert (head.status_code, head.text) == (200, "")


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01 no http", b"GET /metrics" + b"x" * (20 << 10)]
)
async def test_what_is_no_request_gets_no_answer(sent):
    """A client that leaves, speaks something else or never ends its request breaks nothing."""
    async with listening() as listener, httpx.AsyncClient() as client:
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert (await client.get(f"http://{listener.address}/metrics")).status_code == 200


async def test_open_connections_do_not_hold_up_the_end():
    """A client that sends nothing is dropped when the listener stops."""
    async with listening() as listener:
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await listener.stop()
        assert await reader.read() == b""
        writer.close()


async def test_a_port_that_is_taken_is_named():
    """The error says which address and what to do."""
    async with listening() as listener:
        with pytest.raises(ConfigError, match=listener.address):
            MetricsListener(listener.address, CollectorRegistry())


async def test_no_address_means_no_port():
    """Without an address nothing listens."""
    listener = metrics_listener(None, CollectorRegistry())
    assert isinstance(listener, NoMetricsListener)
    await listener.start()
    assert listener.address == ""
    await listener.stop()
