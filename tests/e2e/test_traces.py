"""A client's trace through real processes: a span of the coordinator, and one of every rank below it."""

import httpx
import pytest

from tests.fakes.noted_spans import CLIENT, HEADERS
from tests.fakes.running_coordinator import running_coordinator
from tests.fakes.span_collector import span_collector
from tests.fakes.tiny_checkpoint import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A seeded checkpoint of two layers."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2))


def test_every_rank_tells_its_part_of_a_request(model):
    """Processes end before the spans are looked at, and none that waited to be sent is lost."""
    with span_collector() as collector:
        flags = {"model": model, "dtype": "float32", "pp": 2, "kv_cache_bytes": 4 << 20}
        with running_coordinator(flags | {"otlp_traces_endpoint": collector.url}) as running:
            body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
            answer = httpx.post(f"{running.http_url}/v1/completions", json=body, headers=HEADERS)
            assert answer.status_code == 200
        (request,) = [span for span in collector.spans if span.name == "stepwire.request"]
        ranks = [span for span in collector.spans if span.name == "stepwire.rank"]
    assert (request.trace_id, request.parent_id) == (CLIENT.trace_id, CLIENT.span_id)
    assert request.service == "stepwire-coordinator"
    assert request.attributes["gen_ai.request.id"] == answer.json()["id"]
    assert request.attributes["gen_ai.usage.completion_tokens"] == 4
    assert {(span.service, span.trace_id, span.parent_id) for span in ranks} == {
        ("stepwire-worker", CLIENT.trace_id, request.span_id)
    }
    assert sorted(span.attributes["stepwire.rank"] for span in ranks) == ["stage 0", "stage 1"]
    assert {span.failure for span in collector.spans} == {""}
