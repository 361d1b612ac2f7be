"""Several prompts and several outputs of each are the choices of one answer."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from common.requests import FinishReason, TokenDelta
from tests.fakes.scripted_http import HELLO, ScriptedHttp


@pytest.fixture
async def served() -> AsyncIterator[ScriptedHttp]:
    """A started service."""
    served = ScriptedHttp()
    served.start()
    async with served.client:
        yield served


def total(body: dict[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens of an answer."""
    return body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_n_answers_are_choices_by_index(served, path):
    """Each choice is whole and seeded apart; the prompt is counted once."""
    prompt = {"prompt": "abc"} if path == "completions" else HELLO
    one = (await served.post(path, **prompt)).json()
    body = (await served.post(path, **prompt, n=3, seed=7)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["hello"] * 3
    assert [request.sampling.seed for request in served.loop.requests[1:]] == [7, 8, 9]
    assert total(body) == (total(one)[0], 15)


@pytest.mark.parametrize("prompts", [["a", "bc"], [[97], [98, 99]]])
async def test_several_prompts_are_answered_in_their_order(served, prompts):
    """The choices of a prompt follow each other, and all prompts are counted."""
    body = (await served.post("completions", prompt=prompts, n=2)).json()
    asked = [bytes(request.prompt_token_ids) for request in served.loop.requests]
    assert asked == [b"a", b"a", b"bc", b"bc"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert total(body) == (3, 20)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_choices_of_a_stream_are_told_apart(served, path):
    """Chunks carry their index, each choice has one end, and usage adds all up."""
    prompt = {"prompt": "ab"} if path == "completions" else HELLO
    *chunks, last, done = await served.events(
        path, **prompt, n=2, stream_options={"include_usage": True}
    )
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        texts = [choice.get("text") or choice.get("delta", {}).get("content", "") for choice in own]
        assert "".join(texts) == "hello"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    assert (total(last)[1], done) == (10, "[DONE]")
    assert not served.loop.running


async def test_usage_of_cached_tokens_is_that_of_the_prompts(served):
    """What a prompt found in the cache counts once, however many answers it has."""
    served.loop.script = [
        TokenDelta(token_ids=tuple(b"hello"), finish_reason=FinishReason.STOP, num_cached_tokens=2)
    ]
    body = (await served.post("completions", prompt=["abc", "abd"], n=2)).json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
