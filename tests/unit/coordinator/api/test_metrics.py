"""Facts of what Prometheus reads from a coordinator."""

from dataclasses import replace

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from common.call_times import CallTimes
from common.step import StepTimings
from common.worker_api import Rank
from coordinator.api.metrics import MetricsRoute, coordinator_registry
from coordinator.api.serving_metrics import SERVING_METRICS
from coordinator.api.serving_state import ServingState
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.measures import Measures
from coordinator.engine.request_times import RequestTimes
from tests.fakes.cluster_states import REBUILDING
from tests.fakes.scripted_replica import request

VLLM = {"model_name": "tiny", "engine": "0"}


async def scrape(state: ServingState) -> str:
    """What the route /metrics answers."""
    app = FastAPI()
    registry = coordinator_registry(lambda: state, calls=CallTimes(), http=CallTimes())
    app.include_router(MetricsRoute(registry).router())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return response.text


async def samples(state: ServingState) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(await scrape(state))
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """How `samples` names a sample."""
    return name, frozenset(labels.items())


async def test_the_state_is_told_under_the_names_of_vllm():
    """Queue, blocks, tokens, preemptions and the prefix cache, labelled with model and replica."""
    status = replace(
        REBUILDING,
        num_blocks=200,
        num_free_blocks=150,
        num_drafts=70,
        num_draft_tokens=210,
        num_accepted_tokens=95,
        num_accepted_by_position=(60, 35),
    )
    told = await samples(ServingState(status=status, measures=Measures()))
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [told[key(by_position, position=place, **VLLM)] for place in ("0", "1")] == [60, 35]
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 2000,
        "vllm:prefix_cache_hits_total": 500,
        "vllm:spec_decode_num_drafts_total": 70,
        "vllm:spec_decode_num_draft_tokens_total": 210,
        "vllm:spec_decode_num_accepted_tokens_total": 95,
        "vllm:prompt_tokens_total": 2000,
        "vllm:prompt_tokens_cached_total": 500,
        "vllm:num_preemptions_total": 4,
    }
    assert {name: told[key(name, **VLLM)] for name in expected} == expected


async def test_ended_and_refused_requests_are_told_by_reason():
    """Every reason is there from the start; a full queue has vLLM's name beside ours."""
    measures = Measures()
    times = RequestTimes(arrived=0.0)
    measures.requests.note_ended(
        request((1, 2), max_tokens=4), times, end="length", num_tokens=4, now=2.0
    )
    measures.requests.num_refused["Overloaded"] += 3
    told = await samples(ServingState(status=REBUILDING, measures=measures, max_model_len=64))
    ends = {
        end: told[key("vllm:request_success_total", finished_reason=end, **VLLM)]
        for end in ("stop", "length", "abort", "error")
    }
    assert ends == {"stop": 0, "length": 1, "abort": 0, "error": 0}
    full = key("vllm:admission_rejections_total", model_name="tiny", reason="max_num_queued_reqs")
    assert told[full] == told[key("stepwire_requests_refused_total", reason="Overloaded")] == 3
    assert told[key("vllm:e2e_request_latency_seconds_sum", **VLLM)] == 2.0


async def test_tokens_of_requests_have_bounds_up_to_the_length_of_the_model():
    """As vLLM chooses them; before the length is known there are none."""
    measures = Measures()
    text = await scrape(ServingState(status=REBUILDING, measures=measures, max_model_len=64))
    lines = [line for line in text.splitlines() if "request_prompt_tokens_bucket" in line]
    bounds = [line.split('le="')[1].split('"')[0] for line in lines]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"]
    starting = await scrape(ServingState(status=ClusterStatus(model="tiny"), measures=measures))
    assert "request_prompt_tokens" not in starting


async def test_workers_and_generations_are_told():
    """A lost rank is 0; how old the last step is and what ended can be alarmed on."""
    measures = Measures()
    measures.num_generations_lost = 2
    measures.num_rebuilds = 1
    told = await samples(ServingState(status=REBUILDING, measures=measures))
    up = [
        told[
            key(
                "stepwire_worker_up",
                rank=f"stage {stage}",
                address=f"10.0.0.{stage}:50061",
                device="cpu",
            )
        ]
        for stage in (0, 1)
    ]
    assert up == [1, 0]
    expected = {
        "stepwire_serving": 0,
        "stepwire_epoch": 3,
        "stepwire_generation": 2,
        "stepwire_step": 412,
        "stepwire_last_step_age_seconds": 1.26,
        "stepwire_generations_lost_total": 2,
        "stepwire_rebuilds_total": 1,
        "stepwire_invalid_steps_total": 1,
        "stepwire_state_checks_total": 9,
        "stepwire_state_drifts_total": 0,
    }
    assert {name: told[key(name)] for name in expected} == expected


async def test_steps_are_told_by_rank():
    """Computing, waiting and bubbles of each rank, and the round trip of the group."""
    measures = Measures()
    for step in range(2):
        start = 1_000_000_000 * step
        timing = StepTimings(
            compute_start_ns=start, compute_end_ns=start + 250_000_000, wait_input_ns=125_000_000
        )
        measures.steps.note_answered(
            {Rank(stage=1): timing}, num_tokens=7, seconds=0.5, is_last=False
        )
    told = await samples(ServingState(status=REBUILDING, measures=measures))
    rank = {"rank": "stage 1"}
    assert told[key("stepwire_rank_compute_seconds_sum", **rank)] == 0.5
    assert told[key("stepwire_rank_input_wait_seconds_sum", **rank)] == 0.25
    assert told[key("stepwire_pipeline_bubble_seconds_total", **rank)] == 0.75
    assert told[key("stepwire_step_round_trip_seconds_count")] == 2
    assert told[key("vllm:iteration_tokens_total_sum", **VLLM)] == 14


async def test_a_service_that_starts_has_metrics():
    """Before there are blocks, steps and requests the counts are 0 and no age is told."""
    told = await samples(ServingState(status=ClusterStatus(model="tiny"), measures=Measures()))
    assert told[key("vllm:kv_cache_usage_perc", **VLLM)] == 0
    assert told[key("stepwire_serving")] == 0
    assert key("stepwire_last_step_age_seconds") not in told


def test_types_are_those_of_vllm():
    """The names a dashboard of vLLM asks for exist, with the type it takes them for."""
    kinds = {spec.name: spec.kind.value for spec in SERVING_METRICS}
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    counters = (
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "num_preemptions",
        "prefix_cache_queries",
        "prefix_cache_hits",
    )
    histograms = (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "iteration_tokens_total",
    )
    expected = (
        dict.fromkeys(gauges, "gauge")
        | dict.fromkeys(counters, "counter")
        | dict.fromkeys(histograms, "histogram")
    )
    assert {name: kinds.get(f"vllm:{name}") for name in expected} == expected
