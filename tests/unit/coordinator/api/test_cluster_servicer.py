"""A status crosses the wire without loss, to the client that people's programs use."""

from dataclasses import replace

import pytest
from stepwire.v1.cluster_pb2_grpc import add_ClusterServicer_to_server

from common.rpc.server import bind, build_server
from coordinator.api.cluster_servicer import ClusterServicer
from coordinator.client import AsyncClient
from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.cluster_states import REBUILDING


@pytest.mark.parametrize(
    "status", [REBUILDING, ClusterStatus(model="tiny"), replace(REBUILDING, last_step_age=0.0)]
)
async def test_status_comes_back_as_it_was(status):
    """Every field is in the message; an age of 0 and no age are told apart."""
    server = build_server(interceptors=[])
    add_ClusterServicer_to_server(ClusterServicer(lambda: status), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            assert await client.status() == status
    finally:
        await server.stop(grace=None)
