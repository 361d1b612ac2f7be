"""A body is read up to a limit, and refused while it arrives, without a reset of the connection."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from common.errors import RequestTooLarge
from coordinator.api.body_limit import BodyLimit, UnreadBodyResponse
from tests.fakes.virtual_time import run_in_virtual_time

LIMIT = 10


class Exchange:
    """One request of these pieces, and what the application sends."""

    def __init__(self, *pieces: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.pieces = list(pieces)
        self.scope: dict[str, Any] = {"type": "http", "headers": list(headers)}
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        """The next piece; nothing more after the last, as from a client that waits."""
        if not self.pieces:
            await asyncio.Event().wait()
        piece = self.pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}

    async def send(self, message: Any) -> None:
        """Note a message of the answer."""
        self.sent.append(message)


async def read(exchange: Exchange) -> bytes:
    """The body that an application behind the limit reads."""
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append(await Request(scope, receive).body())

    await BodyLimit(app, max_bytes=LIMIT)(exchange.scope, exchange.receive, exchange.send)
    return bodies[0]


@pytest.mark.parametrize("announced", [(), ((b"content-length", b"10"),)])
async def test_a_body_at_the_limit_is_read(announced):
    """With its length announced or in pieces of unknown number."""
    assert await read(Exchange(b"12345", b"67890", headers=announced)) == b"1234567890"


async def test_an_announced_length_is_refused_before_anything_is_read():
    """The client need not send what nobody wants."""
    exchange = Exchange(b"x", headers=((b"content-length", b"11"),))
    with pytest.raises(RequestTooLarge, match="10 bytes"):
        await read(exchange)
    assert exchange.pieces == [b"x"]


async def test_pieces_are_refused_when_they_pass_the_limit():
    """What comes after is left unread."""
    exchange = Exchange(b"12345", b"678901", b"never")
    with pytest.raises(RequestTooLarge):
        await read(exchange)
    assert exchange.pieces == [b"never"]


async def test_the_answer_is_sent_before_the_rest_is_dropped():
    """Status and body go out at once, the connection closes once the client has sent all."""
    exchange = Exchange(b"more", b"and more")
    await UnreadBodyResponse(JSONResponse({"error": "x"}, status_code=413))(
        exchange.scope, exchange.receive, exchange.send
    )
    start, body, end = exchange.sent
    assert start["status"] == 413
    assert (b"connection", b"close") in start["headers"]
    assert (body["body"], body["more_body"]) == (b'{"error":"x"}', True)
    assert (end["body"], end["more_body"]) == (b"", False)
    assert exchange.pieces == []


async def test_who_waits_to_be_told_to_go_on_is_not_told():
    """A client that asked first has sent nothing, and must not begin after its refusal."""
    exchange = Exchange(b"would come", headers=((b"expect", b"100-continue"),))
    await UnreadBodyResponse(JSONResponse({}, status_code=413))(
        exchange.scope, exchange.receive, exchange.send
    )
    assert exchange.pieces == [b"would come"]
    assert exchange.sent[-1]["more_body"] is False


def test_a_client_that_never_ends_is_left():
    """The rest of a body is awaited for a moment and no longer."""

    async def answer() -> list[Any]:
        exchange = Exchange()
        await UnreadBodyResponse(JSONResponse({}, status_code=413))(
            exchange.scope, exchange.receive, exchange.send
        )
        return exchange.sent

    assert run_in_virtual_time(answer())[-1]["more_body"] is False
