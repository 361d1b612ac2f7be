"""A request has one id over HTTP, in its answer, its log lines and the engine; and a body has an end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.rpc.server import MAX_REQUEST_BYTES
from tests.fakes.scripted_http import ScriptedHttp
from tests.fakes.scripted_loop import deltas


@pytest.fixture
async def served() -> AsyncIterator[ScriptedHttp]:
    """A started service."""
    served = ScriptedHttp()
    served.start()
    async with served.client:
        yield served


@pytest.mark.parametrize("stream", [False, True])
async def test_the_id_of_a_request_is_the_clients(served, stream):
    """X-Request-Id names the request everywhere, and comes back."""
    response = await served.client.post(
        "/v1/completions",
        json={"prompt": "x", "stream": stream},
        headers={"X-Request-Id": "mine"},
    )
    assert response.headers["x-request-id"] == served.loop.requests[0].request_id == "mine"
    assert '"id":"mine"' in response.text


@pytest.mark.parametrize(("path", "prefix"), [("completions", "cmpl-"), ("models", "req-")])
async def test_a_request_without_an_id_gets_one(served, path, prefix):
    """Every answer has one, errors too, and no two the same."""
    answers = [await served.client.get(f"/v1/{path}") for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(request_id.startswith(prefix) for request_id in ids)
    assert ids[0] != ids[1]


async def test_an_id_that_runs_is_a_conflict(served):
    """The second request with it is 409 and does not disturb the first."""
    served.loop.script = ()
    headers = {"X-Request-Id": "mine"}
    first = asyncio.create_task(
        served.client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    )
    await served.loop.submitted.wait()
    second = await served.client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    error = second.json()["error"]
    assert (second.status_code, error["code"], error["param"]) == (
        409,
        "already_exists",
        "request_id",
    )
    served.loop.running["mine"].events.put_nowait(*deltas("late"))
    assert (await first).json()["choices"][0]["text"] == "late"


@pytest.mark.parametrize("request_id", ["x" * 129, "two words"])
async def test_an_id_that_cannot_be_one_is_refused(served, request_id):
    """The error names it."""
    response = await served.client.post(
        "/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": request_id}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "request_id")


async def test_a_body_that_is_too_large_is_413(served):
    """With its code, and an id."""
    response = await served.client.post("/v1/completions", content=b"x" * (MAX_REQUEST_BYTES + 1))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert str(MAX_REQUEST_BYTES) in error["message"]
    assert response.headers["connection"] == "close"
    assert "x-request-id" in response.headers
