"""Every metric of a coordinator, declared once, and the route where Prometheus reads them.

What is told are counts that the parts keep anyway, read when somebody asks: nothing on the way of a
step knows of metrics.
"""

from collections.abc import Callable, Iterator, Mapping

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.engine.cluster_status import ClusterStatus


class CoordinatorMetrics(Collector):
    """Turns the state of the moment into families of samples."""

    def __init__(
        self,
        *,
        read_status: Callable[[], ClusterStatus],
        read_ended: Callable[[], Mapping[str, int]],
    ) -> None:
        """read_ended gives the number of requests that have ended, by finish reason."""
        self._read_status = read_status
        self._read_ended = read_ended

    def describe(self) -> list[Metric]:
        """Name nothing in advance, so that registering asks for no state."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics now."""
        status = self._read_status()
        for name, help_text, gauge in _gauges(status):
            yield GaugeMetricFamily(name, help_text, value=gauge)
        for name, help_text, count in _counters(status):
            yield CounterMetricFamily(name, help_text, value=count)
        ended = CounterMetricFamily(
            "stepwire_requests_ended", "Requests that have ended.", labels=["finish_reason"]
        )
        for reason, count in sorted(self._read_ended().items()):
            ended.add_metric([reason], count)
        yield ended


def _gauges(status: ClusterStatus) -> list[tuple[str, str, float]]:
    num_used = status.num_blocks - status.num_free_blocks
    return [
        ("stepwire_serving", "1 while requests are accepted.", status.is_serving),
        ("stepwire_requests_running", "Requests that hold blocks.", status.num_running),
        ("stepwire_requests_waiting", "Requests in the queue.", status.num_waiting),
        (
            "stepwire_kv_cache_usage_ratio",
            "Share of the KV cache blocks that requests hold.",
            num_used / status.num_blocks if status.num_blocks else 0.0,
        ),
        (
            "stepwire_prefix_cache_hit_ratio",
            "Share of all prompt tokens so far that were found in the prefix cache.",
            status.prefix_hit_ratio,
        ),
    ]


def _counters(status: ClusterStatus) -> list[tuple[str, str, int]]:
    return [
        (
            "stepwire_prompt_tokens",
            "Prompt tokens of admitted requests: all are looked up in the prefix cache.",
            status.num_prompt_tokens,
        ),
        (
            "stepwire_prompt_tokens_cached",
            "Prompt tokens that were found in the prefix cache.",
            status.num_cached_tokens,
        ),
        ("stepwire_generated_tokens", "Tokens generated.", status.num_generated_tokens),
        (
            "stepwire_preemptions",
            "How often a request lost its blocks to another one.",
            status.num_preemptions,
        ),
    ]


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
