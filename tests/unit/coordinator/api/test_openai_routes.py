"""HTTP answers have the shapes OpenAI clients read, whole, streamed and failed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.errors import Overloaded, Unavailable
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from tests.fakes.scripted_http import HELLO, ScriptedHttp
from tests.fakes.scripted_loop import deltas


@pytest.fixture
async def served() -> AsyncIterator[ScriptedHttp]:
    """A started service."""
    served = ScriptedHttp()
    served.start()
    async with served.client:
        yield served


def usage(*, prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The counts of an answer of five tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 5,
        "total_tokens": prompt_tokens + 5,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


async def test_a_completion_is_text_with_usage(served):
    """A whole completion holds text, finish reason and counts."""
    body = (await served.post("completions", model="tiny", prompt="abc")).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == usage(prompt_tokens=3, cached_tokens=0)


@pytest.mark.parametrize("prompt", ["hi", ["hi"], list(b"hi"), [list(b"hi")]])
async def test_a_prompt_may_be_text_or_token_ids(served, prompt):
    """All four spellings of one prompt are the same request."""
    assert (await served.post("completions", prompt=prompt)).status_code == 200
    assert served.loop.requests[0].prompt_token_ids == tuple(b"hi")


async def test_a_chat_answer_is_a_message(served):
    """A whole chat answer is the assistant's message."""
    (choice,) = (await served.post("chat/completions", **HELLO)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_a_chat_stream_begins_with_the_role_and_ends_with_done(served):
    """Role first, text as it comes, the finish reason on the last chunk, then [DONE]."""
    *chunks, done = await served.events("chat/completions", **HELLO)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"]["content"] for choice in choices[1:]] == ["he", "llo"]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert done == "[DONE]"
    assert not served.loop.running


async def test_a_stream_tells_usage_when_asked(served):
    """include_usage adds one chunk without choices before [DONE]."""
    events = await served.events("completions", prompt="ab", stream_options={"include_usage": True})
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == usage(prompt_tokens=2, cached_tokens=0)


async def test_usage_tells_what_the_prefix_cache_held(served):
    """Cached tokens stand where OpenAI's clients look for them."""
    served.loop.script = [
        TokenDelta(token_ids=tuple(b"hello"), finish_reason=FinishReason.STOP, num_cached_tokens=2)
    ]
    body = (await served.post("completions", prompt="abc")).json()
    assert body["usage"] == usage(prompt_tokens=3, cached_tokens=2)


async def test_options_reach_the_request(served):
    """Sampling, stop rules and the newer name of max_tokens arrive."""
    await served.post(
        "chat/completions",
        **HELLO,
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        seed=9,
        stop="END",
        stop_token_ids=[5],
        ignore_eos=True,
        priority=-2,
        max_tokens=9,
        max_completion_tokens=4,
    )
    (request,) = served.loop.requests
    sampling, stopping = request.sampling, request.stopping
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.5)
    assert (sampling.min_p, sampling.seed, stopping.max_tokens) == (0.25, 9, 4)
    assert (stopping.stop, stopping.stop_token_ids) == (("END",), {5})
    assert stopping.ignore_eos
    assert request.priority == -2


def positions(text: str) -> tuple[TokenLogprobs, ...]:
    """Each byte chosen at -0.5, the byte "z" second at -1."""
    return tuple(
        TokenLogprobs(token_id=byte, logprob=-0.5, rank=1, top=((byte, -0.5), (0x7A, -1.0)))
        for byte in text.encode()
    )


async def test_legacy_log_probabilities(served):
    """Completions spell log-probabilities as parallel lists with text offsets."""
    served.loop.script = [
        TokenDelta(token_ids=tuple(b"ab"), logprobs=positions("ab")),
        TokenDelta(token_ids=(0x63,), logprobs=positions("c"), finish_reason=FinishReason.LENGTH),
    ]
    body = (await served.post("completions", prompt="x", logprobs=2)).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{text: -0.5, "z": -1.0} for text in "abc"],
        "text_offset": [0, 1, 2],
    }
    assert served.loop.requests[0].sampling.num_logprobs == 2


async def test_chat_log_probabilities(served):
    """Chat spells them per token, with bytes and alternatives."""
    served.loop.script = [
        TokenDelta(
            token_ids=(0xC3,), logprobs=positions("\u00e9")[:1], finish_reason=FinishReason.STOP
        )
    ]
    body = (await served.post("chat/completions", **HELLO, logprobs=True, top_logprobs=1)).json()
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xC3], -0.5)
    assert entry["top_logprobs"][1] == {"token": "z", "logprob": -1.0, "bytes": [0x7A]}


REFUSED = [
    ("completions", {"prompt": "x", "temperature": 3}, "temperature"),
    ("completions", {"prompt": "x", "temperature": "hot"}, "temperature"),
    ("completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ("completions", {"prompt": "x", "max_tokens": True}, "max_tokens"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": ["a", ""]}, "prompt"),
    ("completions", {"prompt": ["a", 1]}, "prompt"),
    ("completions", {"prompt": {"a": 1}}, "prompt"),
    ("completions", {"prompt": [1, 300]}, "prompt"),
    ("completions", {"prompt": "x" * 64}, "prompt"),
    ("completions", {}, "prompt"),
    ("completions", {"prompt": "x", "logprobs": 21}, "logprobs"),
    ("completions", {"prompt": "x", "stop": [""]}, "stop"),
    ("completions", {"prompt": "x", "stop": 7}, "stop"),
    ("completions", {"prompt": "x", "n": 0}, "n"),
    ("completions", {"prompt": "x", "n": 129}, "n"),
    ("completions", {"prompt": ["x"] * 1025}, "prompt"),
    ("completions", {"prompt": "x", "best_of": 2}, "best_of"),
    ("completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ("completions", {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
    ("completions", {"prompt": "x", "min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ("completions", {"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids"),
    ("completions", {"prompt": "x", "allowed_token_ids": [300]}, "allowed_token_ids"),
    ("completions", {"prompt": "x", "bad_words": [""]}, "bad_words"),
    ("completions", {"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
    ("completions", {"prompt": "x", "vllm_xargs": {"lower": 1}}, "vllm_xargs"),
    ("completions", {"prompt": "x", "use_beam_search": True}, "use_beam_search"),
    ("chat/completions", HELLO | {"echo": True}, "echo"),
    ("completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("completions", {"prompt": "x", "logit_bias": {"one": 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "logit_bias": {"300": 1}}, "logit_bias"),
    ("completions", {"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias"),
    ("completions", {"prompt": "x", "presence_penalty": 2.5}, "presence_penalty"),
    ("completions", {"prompt": "x", "stream_options": {}}, "stream_options"),
    ("chat/completions", HELLO | {"tools": [{}]}, "tools"),
    ("chat/completions", HELLO | {"response_format": {"type": "xml"}}, "response_format"),
    ("chat/completions", HELLO | {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("chat/completions", HELLO | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("chat/completions", HELLO | {"top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x" * 64}]}, "messages"),
    ("chat/completions", {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages"),
    (
        "chat/completions",
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "tool_calls",
    ),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
async def test_a_bad_body_is_refused_by_name(served, path, body, param):
    """Status 400 and an error object whose message and param name the field."""
    response = await served.post(path, **body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert param in error["message"]
    assert not served.loop.requests


async def test_neutral_and_unknown_fields_pass(served):
    """Fields that ask for nothing pass; unknown ones are ignored and counted."""
    neutral = {"n": 1, "tools": None, "presence_penalty": 0.0, "user": "me", "store": True}
    response = await served.post("chat/completions", **HELLO, **neutral, flavour="sweet")
    assert response.status_code == 200
    assert served.routes.unknown_fields.count_by_name == {"flavour": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b'{"prompt": NaN}'])
async def test_a_body_that_is_no_object_is_refused(served, content):
    """Broken or wrong JSON answers 400 in the same shape."""
    response = await served.client.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_of_another_type_is_told_which_to_send(served):
    """JSON under the type of a form, which curl sends unasked, answers with the header to set."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = await served.client.post("/v1/completions", content=b"{}", headers=form)
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/completions", 405)])
async def test_an_unknown_route_answers_in_the_same_shape(served, path, status):
    """404 and 405 carry an error object too."""
    response = await served.client.get(path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]
    assert response.headers.get("Allow") == {404: None, 405: "POST"}[status]


async def test_another_model_is_404(served):
    """A model that is not served is named."""
    response = await served.post("completions", model="huge", prompt="x")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (Unavailable("x"), 503)])
async def test_what_may_be_tried_again_says_when(served, error, status):
    """429 and 503 carry Retry-After."""
    served.loop.refusal = error
    response = await served.post("completions", prompt="x")
    assert (response.status_code, response.headers["retry-after"]) == (status, "1")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token_is_a_status(served, stream):
    """A worker lost before anything was sent answers 503, also for a stream."""
    served.loop.script = [Unavailable("stage 1 lost")]
    response = await served.post("completions", prompt="x", stream=stream)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "stage 1 lost"


async def test_an_error_in_the_stream_is_its_last_event(served):
    """After the first event an error comes as an event, and the stream ends without [DONE]."""
    served.loop.script = [*deltas("he", finish=None), Unavailable("stage 1 lost")]
    *_, text, error = await served.events("completions", prompt="x")
    assert text["choices"][0]["text"] == "he"
    assert error["error"]["message"] == "stage 1 lost"
    assert error["error"]["code"] == "unavailable"


async def test_tokens_without_text_make_no_chunk(served):
    """Half a character is not worth an event; the text is whole in the end."""
    first, *rest = "\u00e9".encode()
    served.loop.script = [
        TokenDelta(token_ids=(first,)),
        TokenDelta(token_ids=tuple(rest), finish_reason=FinishReason.STOP),
    ]
    chunk, done = await served.events("completions", prompt="x")
    assert (chunk["choices"][0]["text"], done) == ("\u00e9", "[DONE]")


async def test_models_are_listed_and_found(served):
    """The served model is listed and can be asked for by name."""
    (model,) = (await served.client.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["created"]) == ("tiny", "model", 1)
    assert (await served.client.get("/v1/models/tiny")).json() == model
    assert (await served.client.get("/v1/models/huge")).status_code == 404


async def test_health_and_version(served):
    """/health follows the service, /version names the release."""
    assert (await served.client.get("/health")).status_code == 200
    served.loop.is_serving = False
    assert (await served.client.get("/health")).status_code == 503
    assert (await served.client.get("/version")).json() == {"version": "1.2.3"}


async def test_a_load_balancer_may_ask_for_health_without_a_body(served):
    """HEAD answers as GET does."""
    assert (await served.client.head("/health")).status_code == 200
    served.loop.is_serving = False
    assert (await served.client.head("/health")).status_code == 503


async def test_before_the_start_everything_is_unavailable():
    """Routes answer 503 and say that the service is starting."""
    served = ScriptedHttp()
    async with served.client:
        assert (await served.client.get("/health")).status_code == 503
        response = await served.post("completions", prompt="x")
    assert response.status_code == 503
    assert "starting" in response.json()["error"]["message"]
