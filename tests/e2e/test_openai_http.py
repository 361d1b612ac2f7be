"""The stock `openai` client against a real coordinator with a real, tiny model."""

import json
from collections.abc import Iterator

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama

LONG_TOKENS = 1500
LONG = {"max_tokens": LONG_TOKENS, "extra_body": {"ignore_eos": True}}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RunningCoordinator]:
    """One coordinator with its worker inside, two sequences at a time."""
    model = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)
    flags = {"model": str(model), "executor": "uniproc", "max_num_seqs": 2}
    flags |= {"max_num_batched_tokens": 256, "kv_cache_bytes": 4 << 20}
    with running_coordinator(flags) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[OpenAI]:
    """An OpenAI client that gives up at the first error."""
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completion_streamed_and_not(client):
    """Greedy text is the same in one piece and in chunks, and its tokens are counted."""
    options = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    stream = client.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert last.usage == whole.usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 12)


def test_chat_streamed_and_not(client):
    """A chat answer is the same in one piece and in chunks, and the role comes first."""
    options = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options)
    first, *chunks = list(client.chat.completions.create(**options, stream=True))
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_token_ids_are_a_prompt(client):
    """The same prompt as text and as token ids gives the same answer."""
    options = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    text = client.completions.create(prompt="hello", **options)
    token_ids = client.completions.create(prompt=list(b"hello"), **options)
    assert text.choices[0].text == token_ids.choices[0].text


def test_choices_and_lists_of_prompts(client):
    """Two prompts with two choices each are four texts, of which each prompt's first is its own."""
    options = {"model": "tiny", "max_tokens": 8, "temperature": 1.0, "seed": 3}
    several = client.completions.create(prompt=["hello", "help"], n=2, **options)
    alone = [client.completions.create(prompt=text, **options) for text in ("hello", "help")]
    texts = [choice.text for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [texts[0], texts[2]] == [answer.choices[0].text for answer in alone]
    assert several.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)


def test_choices_of_a_chat_are_streamed(client):
    """Chunks of two answers, put together by index, are the answers in one piece."""
    options = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**options)
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]


def test_the_id_of_a_request_comes_back(client):
    """What the client names its request, it finds in the answer and in its header."""
    headers = {"X-Request-Id": "mine"}
    raw = client.completions.with_raw_response.create(
        model="tiny", prompt="x", max_tokens=1, extra_headers=headers
    )
    assert (raw.headers["x-request-id"], raw.parse().id) == ("mine", "mine")


def test_a_seed_fixes_the_answer(client):
    """Sampling with one seed repeats itself, with another it does not."""
    options = {"model": "tiny", "prompt": "hello", "max_tokens": 16, "temperature": 1.0}
    texts = [client.completions.create(**options, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_the_answer(client):
    """Text before the stop string is what the answer without it begins with."""
    options = {"model": "tiny", "prompt": "hello", "max_tokens": 16, "temperature": 0}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[5:7]
    stopped = client.completions.create(**options, stop=stop)
    assert stopped.choices[0].text == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 16


def test_log_probabilities_of_both_endpoints(client):
    """The chosen token of a greedy answer is the most likely one, and offsets follow the text."""
    options = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    legacy = client.completions.create(prompt="hello", logprobs=2, **options).choices[0].logprobs
    assert len(legacy.tokens) == len(legacy.token_logprobs) == len(legacy.text_offset) == 4
    assert legacy.text_offset[0] == 0
    assert all(len(top) <= 2 for top in legacy.top_logprobs)
    chat = client.chat.completions.create(
        messages=HELLO, logprobs=True, top_logprobs=2, **options
    ).choices[0]
    for entry in chat.logprobs.content:
        assert entry.bytes == entry.top_logprobs[0].bytes
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_models_health_and_version(client, server):
    """The model is listed, the service is healthy and has a version."""
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    assert httpx.get(f"{server.http_url}/health").status_code == 200
    assert "version" in httpx.get(f"{server.http_url}/version").json()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, 9999]}, "prompt"),
        ({"prompt": "x" * 3000}, "prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "extra_body": {"min_p": 2}}, "min_p"),
        ({"prompt": "x", "extra_body": {"stop_token_ids": [300]}}, "stop_token_ids"),
    ],
)
def test_bad_input_is_a_bad_request(client, options, param):
    """The client raises BadRequestError naming the field."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", **options)
    assert caught.value.param == param


def test_another_model_is_not_found(client):
    """The client raises NotFoundError."""
    with pytest.raises(openai.NotFoundError, match="'huge'"):
        client.completions.create(model="huge", prompt="x")


def test_leaving_mid_stream_frees_the_blocks(client, server):
    """A closed stream gives all blocks back before its tokens have ended."""
    before = server.client.status().num_generated_tokens
    stream = client.completions.create(model="tiny", prompt="hello", stream=True, **LONG)
    next(iter(stream))
    assert server.client.status().num_running == 1
    stream.close()
    assert server.wait_until_idle().num_generated_tokens - before < LONG_TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_frees_the_request(client, server, stream):
    """A client that gives up while its request waits for its turn leaves nothing in the queue."""
    holders = [
        client.completions.create(model="tiny", prompt="hold", stream=True, **LONG)
        for _ in range(2)
    ]
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="tiny", prompt="x", stream=stream, timeout=0.2, **LONG)
    server.wait_until(lambda status: status.num_waiting == 0)
    assert server.client.status().num_running == 2
    for holder in holders:
        holder.close()
    server.wait_until_idle()


def test_leaving_an_answer_in_one_piece_frees_the_blocks(client, server):
    """A client that gives up on an answer that is not streamed ends its request."""
    before = server.client.status().num_generated_tokens
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="tiny", prompt="x", timeout=0.2, **LONG)
    assert server.wait_until_idle().num_generated_tokens - before < LONG_TOKENS


def test_a_worker_lost_in_the_stream_is_an_error_of_the_stream(tmp_path):
    """After the first event the client raises the error that names rank and cause."""
    model = write_tiny_llama(tmp_path / "tiny", num_layers=2)
    flags = {"model": str(model), "executor": "local", "kv_cache_bytes": 4 << 20}
    with (
        running_coordinator(flags | {"max_num_batched_tokens": 256}) as running,
        OpenAI(base_url=f"{running.http_url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.completions.create(model="tiny", prompt="x", stream=True, **LONG)
        next(stream)
        psutil.Process(running.process.pid).children()[0].kill()
        with pytest.raises(openai.APIError, match=r"stage 0 .*SIGKILL"):
            list(stream)
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="tiny", prompt="x")
    assert (caught.value.status_code, caught.value.code) == (503, "worker_lost")


def test_events_are_framed_for_any_client(server):
    """Raw server-sent events: one JSON object a line, [DONE] last."""
    body = {"messages": HELLO, "stream": True, "max_tokens": 3, "ignore_eos": True}
    response = httpx.post(f"{server.http_url}/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all("choices" in json.loads(event.removeprefix("data: ")) for event in events)
