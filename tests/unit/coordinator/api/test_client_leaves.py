"""A client that closes its HTTP connection frees its request, whatever the answer waits for."""

import asyncio
import json
from typing import Any

import pytest

from common.clock import SystemClock
from common.requests import TokenDelta
from coordinator.api.openai_routes import OpenAIRoutes, build_http_app
from coordinator.engine.engine import Engine
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import ServedModel
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=1)


class Connection:
    """One HTTP connection to the application, spoken in ASGI messages."""

    def __init__(self, loop: ScriptedLoop, **body: Any) -> None:
        gate = EngineGate()
        tokenizer = Tokenizer(byte_tokenizer(), template=None)
        gate.open(Engine(model=MODEL, tokenizer=tokenizer, loop=loop))
        routes = OpenAIRoutes(gate, is_healthy=lambda: True, version="1", clock=SystemClock())
        self.app = build_http_app(routes)
        self.body = json.dumps({"prompt": "x"} | body).encode()
        self.is_read = False
        self.left = asyncio.Event()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        """The body, then the end of the connection once the client left."""
        if not self.is_read:
            self.is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def serve(self) -> None:
        """Let the application answer."""
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }
        await self.app(scope, self.receive, self.sent.put)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token(stream):
    """A request that waits for its first token is freed when its client leaves."""
    loop = ScriptedLoop()
    connection = Connection(loop, stream=stream)
    answer = asyncio.create_task(connection.serve())
    await loop.submitted.wait()
    connection.left.set()
    await loop.all_closed()
    await answer


async def test_leaving_mid_stream():
    """A stream that waits for its next token is freed when its client leaves."""
    loop = ScriptedLoop(deltas("a", finish=None))
    connection = Connection(loop, stream=True)
    answer = asyncio.create_task(connection.serve())
    assert (await connection.sent.get())["type"] == "http.response.start"
    assert b'"text":"a"' in (await connection.sent.get())["body"]
    connection.left.set()
    await loop.all_closed()
    await answer


async def test_a_connection_that_breaks_while_writing():
    """A write that fails ends the request as leaving does."""
    loop = ScriptedLoop([TokenDelta(token_ids=(0x61,))] * 3)
    connection = Connection(loop, stream=True)

    async def broken(message: Any) -> None:
        raise OSError

    connection.sent.put = broken
    await connection.serve()
    assert not loop.running


async def test_a_cancelled_server_frees_the_request():
    """A server that ends its connections in the middle of an answer leaves nothing running."""
    loop = ScriptedLoop()
    answer = asyncio.create_task(Connection(loop, stream=True).serve())
    await loop.submitted.wait()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert not loop.running


async def test_leaving_within_the_body():
    """A client that leaves before its request is whole asks nothing, and is no bug of ours."""
    loop = ScriptedLoop()
    connection = Connection(loop)
    pieces = [
        {"type": "http.request", "body": b'{"prompt"', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0)

    connection.receive = receive
    await connection.serve()
    assert not loop.requests
