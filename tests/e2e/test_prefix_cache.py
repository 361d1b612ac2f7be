"""Requests that begin alike, on real workers: computed once, answered the same, told in metrics."""

import random
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.running_coordinator import running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

NUM_REQUESTS = 32
SHARED_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 1000, 4, 4
PROMPT_TOKENS = SHARED_TOKENS + OWN_TOKENS
BLOCK_SIZE = 16
CACHED_TOKENS = SHARED_TOKENS // BLOCK_SIZE * BLOCK_SIZE
WARM_UP_TOKENS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What came of all requests: texts, cached tokens of each, computed ones of each stage, metrics."""

    texts: list[str]
    cached_tokens: list[int]
    prefill_tokens: list[int]
    samples: dict[str, float]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A seeded checkpoint of two layers."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2))


def prompts() -> list[list[int]]:
    """Prompts that begin alike and end differently."""
    draw = random.Random(3)
    shared = [draw.randrange(256) for _ in range(SHARED_TOKENS)]
    return [shared + [draw.randrange(256) for _ in range(OWN_TOKENS)] for _ in range(NUM_REQUESTS)]


def serve(model: str, *, prefix_cache: bool, num_prefill_tokens: int) -> Served:
    """Ask for one after the other, and wait for the workers to say that they computed so many tokens."""
    flags = {"model": model, "dtype": "float32", "pp": 2, "prefix_cache": prefix_cache}
    flags |= {"block_size": BLOCK_SIZE, "kv_cache_bytes": 4 << 20}
    with running_coordinator(flags) as running:
        with httpx.Client(base_url=running.http_url, timeout=60) as client:
            bodies = [ask(client, prompt) for prompt in prompts()]
            metrics = client.get("/metrics").text
        status = running.wait_until(
            lambda status: all(
                worker.num_prefill_tokens >= num_prefill_tokens for worker in status.workers
            )
        )
    return Served(
        texts=[body["choices"][0]["text"] for body in bodies],
        cached_tokens=[body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies],
        prefill_tokens=[worker.num_prefill_tokens for worker in status.workers],
        samples={
            sample.name: sample.value
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
        },
    )


def ask(client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
    """A greedy completion of token ids."""
    body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_shared_prompt_tokens_are_computed_once(model):
    """Every stage computes less than a tenth of the prompt tokens, and the texts stay the same."""
    num_all = WARM_UP_TOKENS + NUM_REQUESTS * PROMPT_TOKENS
    plain = serve(model, prefix_cache=False, num_prefill_tokens=num_all)
    assert plain.prefill_tokens == [num_all] * 2
    assert set(plain.cached_tokens) == {0}

    num_left = num_all - (NUM_REQUESTS - 1) * CACHED_TOKENS
    shared = serve(model, prefix_cache=True, num_prefill_tokens=num_left)
    assert shared.prefill_tokens == [num_left] * 2
    assert num_left < num_all / 10
    assert shared.texts == plain.texts
    assert shared.cached_tokens == [0] + [CACHED_TOKENS] * (NUM_REQUESTS - 1)

    ratio = (NUM_REQUESTS - 1) * CACHED_TOKENS / (NUM_REQUESTS * PROMPT_TOKENS)
    hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    assert shared.samples[hits] / shared.samples[queries] == pytest.approx(ratio)
    assert shared.samples["vllm:generation_tokens_total"] == NUM_REQUESTS * OUTPUT_TOKENS
    assert shared.samples["vllm:e2e_request_latency_seconds_count"] == NUM_REQUESTS
