"""Every metric of a coordinator on one registry, and the route where Prometheus reads them."""

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from common.call_times import CALL_METRICS, CallTimes
from common.metrics import TableCollector, new_registry
from coordinator.api.cluster_metrics import CLUSTER_METRICS
from coordinator.api.http_times import HTTP_METRICS
from coordinator.api.serving_metrics import SERVING_METRICS
from coordinator.api.serving_state import ServingState


def coordinator_registry(
    read_state: Callable[[], ServingState], *, calls: CallTimes, http: CallTimes
) -> CollectorRegistry:
    """All metrics of a coordinator; read_state gives its state now, calls are those of gRPC."""
    return new_registry(
        TableCollector((*SERVING_METRICS, *CLUSTER_METRICS), read_state),
        TableCollector(CALL_METRICS, lambda: calls),
        TableCollector(HTTP_METRICS, lambda: http),
    )


class MetricsRoute:
    """Serves a registry in the text format of Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Serve what is registered at the time of a request."""
        self._registry = registry

    def router(self) -> APIRouter:
        """The route /metrics."""
        router = APIRouter()
        router.add_api_route("/metrics", self.metrics, methods=["GET"], response_model=None)
        return router

    async def metrics(self) -> Response:
        """All metrics as text."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
