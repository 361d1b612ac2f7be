"""Metrics of real processes: after k requests they say k, and the tokens their usage says."""

from collections import Counter
from typing import Any

import httpx
import pytest

from tests.fakes.metrics_reader import Scrape, scrape
from tests.fakes.running_coordinator import running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import worker_processes

LISTENING = "--metrics-listen=127.0.0.1:0"
HIDDEN_BYTES = 64 * 4
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A seeded checkpoint of two layers."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2))


def ask_all(url: str) -> list[dict[str, Any]]:
    """Requests of every way to end, streamed and not; what each says of its choice and its usage."""
    bodies: list[dict[str, Any]] = [
        {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True},
        {"prompt": [9] * 40, "max_tokens": 6, "ignore_eos": True, **STREAMED},
        {"prompt": [5, 6, 7], "max_tokens": 1},
        {"prompt": [3, 1], "max_tokens": 30, "stop_token_ids": list(range(64))},
    ]
    with httpx.Client(base_url=url, timeout=60) as client:
        return [ask(client, body) for body in bodies]


def ask(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """One request; the finish reason and the usage of its answer."""
    response = client.post("/v1/completions", json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    if "stream" not in body:
        whole = response.json()
        return {"end": whole["choices"][0]["finish_reason"], **whole["usage"]}
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    chunks = [httpx.Response(200, text=line).json() for line in lines if line != "[DONE]"]
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    return {"end": ends[-1], **chunks[-1]["usage"]}


def check_requests(told: Scrape, answers: list[dict[str, Any]]) -> None:
    """Every count is the number of requests, every count of tokens the sum of their usages."""
    k = len(answers)
    ends = Counter(answer["end"] for answer in answers)
    for end, count in ends.items():
        assert told.total("vllm:request_success_total", finished_reason=end) == count
    assert told.total("vllm:request_success_total") == k
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_params_n",
        "request_params_max_tokens",
    ):
        assert told.total(f"vllm:{name}_count") == k, name
    num_prompt = sum(answer["prompt_tokens"] for answer in answers)
    num_generated = sum(answer["completion_tokens"] for answer in answers)
    assert told.total("vllm:prompt_tokens_total") == num_prompt
    assert told.total("vllm:request_prompt_tokens_sum") == num_prompt
    assert told.total("vllm:generation_tokens_total") == num_generated
    assert told.total("vllm:request_generation_tokens_sum") == num_generated
    assert told.total("vllm:inter_token_latency_seconds_count") == num_generated - k


def test_counts_equal_the_answers_on_one_stage(model):
    """Ends by a stop token and by length, streamed and whole."""
    flags = {"model": model, "dtype": "float32", "kv_cache_bytes": 4 << 20}
    with running_coordinator(flags) as running:
        answers = ask_all(running.http_url)
        told = scrape(f"{running.http_url}/metrics")
    assert {answer["end"] for answer in answers} == {"stop", "length"}
    check_requests(told, answers)
    assert told.total("stepwire_worker_up") == 1


def test_counts_equal_the_answers_on_two_stages(model):
    """Workers tell their phases, and the same bytes from both ends of their link."""
    with worker_processes(2, LISTENING) as workers:
        addresses = ",".join(worker.address for worker in workers)
        flags = {"model": model, "dtype": "float32", "kv_cache_bytes": 4 << 20}
        flags |= {"executor": "remote", "workers": addresses}
        with running_coordinator(flags) as running:
            answers = ask_all(running.http_url)
            told = scrape(f"{running.http_url}/metrics")
            first, last = (scrape(f"http://{w.metrics_address}/metrics") for w in workers)
    check_requests(told, answers)
    num_steps = told.total("stepwire_step")
    assert told.total("vllm:iteration_tokens_total_count") == num_steps
    num_tokens = told.total("vllm:iteration_tokens_total_sum")
    sent = first.total("stepwire_tensor_sent_bytes_total", rank="stage 0", peer="stage 1")
    received = last.total("stepwire_tensor_received_bytes_total", rank="stage 1", peer="stage 0")
    assert sent == received == num_tokens * HIDDEN_BYTES
    assert last.total("stepwire_tensor_wait_seconds_count") == first.total(
        "stepwire_tensor_sent_messages_total"
    )
    for rank, worker in (("stage 0", first), ("stage 1", last)):
        # Not the same number: idle workers are told of ended requests by one step more.
        assert told.total("stepwire_rank_compute_seconds_count", rank=rank) == num_steps
        num_executed = worker.total("stepwire_step_seconds_count", rank=rank, phase="execute")
        assert num_executed == worker.total("stepwire_step") >= num_steps
        assert worker.total("stepwire_worker_serving", rank=rank) == 1
        method = "stepwire.v1.Worker/LoadModel"
        assert worker.total("stepwire_rpc_seconds_count", method=method, outcome="OK") == 1
    num_sampled = last.total("stepwire_step_seconds_count", phase="sample")
    assert num_sampled == last.total("stepwire_tensor_received_messages_total")
