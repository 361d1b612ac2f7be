"""Facts of what Prometheus reads from a coordinator."""

from dataclasses import replace

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from coordinator.api.metrics import CoordinatorMetrics, MetricsRoute
from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.cluster_states import REBUILDING


async def _samples(status: ClusterStatus, ended: dict[str, int]) -> dict[str, float]:
    """Every sample by name, with the value of its label if it has one."""
    registry = CollectorRegistry()
    registry.register(CoordinatorMetrics(read_status=lambda: status, read_ended=lambda: ended))
    app = FastAPI()
    app.include_router(MetricsRoute(registry).router())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_counts_and_ratios_are_told():
    """Queue, blocks, tokens, preemptions and the hit ratio stand under their names."""
    status = replace(REBUILDING, num_blocks=200, num_free_blocks=150)
    assert await _samples(status, {"stop": 7, "length": 2}) == {
        "stepwire_serving": 0,
        "stepwire_requests_running": 2,
        "stepwire_requests_waiting": 1,
        "stepwire_kv_cache_usage_ratio": 0.25,
        "stepwire_prefix_cache_hit_ratio": 0.25,
        "stepwire_prompt_tokens_total": 2000,
        "stepwire_prompt_tokens_cached_total": 500,
        "stepwire_generated_tokens_total": 320,
        "stepwire_preemptions_total": 4,
        "stepwire_requests_ended_total/stop": 7,
        "stepwire_requests_ended_total/length": 2,
    }


async def test_a_service_that_starts_has_metrics():
    """Before there are blocks and prompts the ratios are 0."""
    samples = await _samples(ClusterStatus(model="tiny"), {})
    assert samples["stepwire_kv_cache_usage_ratio"] == 0
    assert samples["stepwire_prefix_cache_hit_ratio"] == 0
