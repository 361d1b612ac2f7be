"""The HTTP application on a scripted loop, and a client of it: no sockets, no workers."""

import json
from typing import Any

import httpx

from common.clock import SystemClock
from coordinator.api.openai_routes import OpenAIRoutes, build_http_app
from coordinator.engine.engine import Engine
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import ServedModel
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import CHAT_TEMPLATE, VOCAB_SIZE, byte_tokenizer
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=1)
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


class ScriptedHttp:
    """A service that answers "hello" in two pieces unless a test writes another script."""

    def __init__(self) -> None:
        self.loop = ScriptedLoop(deltas("he", "llo"))
        self.gate = EngineGate()
        self.routes = OpenAIRoutes(
            self.gate,
            is_healthy=lambda: self.gate.is_serving,
            version="1.2.3",
            clock=SystemClock(),
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(build_http_app(self.routes), raise_app_exceptions=False),
            base_url="http://test",
        )

    def start(self) -> None:
        """Open the gate."""
        tokenizer = Tokenizer(byte_tokenizer(), template=ChatTemplate(CHAT_TEMPLATE))
        self.gate.open(Engine(model=MODEL, tokenizer=tokenizer, loop=self.loop))

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """Send a body."""
        return await self.client.post(f"/v1/{path}", json=body)

    async def events(self, path: str, **body: Any) -> list[Any]:
        """Payloads of a streamed answer, JSON ones parsed."""
        response = await self.post(path, stream=True, **body)
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        lines = [line for line in response.text.split("\n\n") if line]
        payloads = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else json.loads(text) for text in payloads]
