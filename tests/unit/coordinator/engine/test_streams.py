"""Facts of a token stream: coalescing, order of tokens and errors, leaving."""

import asyncio

import pytest

from common.errors import Unavailable
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from coordinator.engine.streams import TokenStream


async def test_what_waits_comes_as_one_delta():
    """A slow reader gets all waiting tokens and log-probabilities at once, with the end."""
    stream = TokenStream(on_leave=lambda: None)
    positions = tuple(TokenLogprobs(token_id=t, logprob=-1.0, rank=1) for t in (5, 6))
    stream.put(TokenDelta(token_ids=(5,), logprobs=positions[:1]))
    stream.put(TokenDelta(token_ids=(6,), logprobs=positions[1:], finish_reason=FinishReason.STOP))
    assert [delta async for delta in stream] == [
        TokenDelta(token_ids=(5, 6), logprobs=positions, finish_reason=FinishReason.STOP)
    ]


async def test_cached_tokens_outlive_the_end():
    """What the first delta says of the prompt stands in every later one, also in an abort's."""
    stream = TokenStream(on_leave=lambda: None)
    stream.put(TokenDelta(token_ids=(5,), num_cached_tokens=16))
    stream.put(TokenDelta(finish_reason=FinishReason.ABORT))
    (delta,) = [delta async for delta in stream]
    assert (delta.token_ids, delta.num_cached_tokens) == ((5,), 16)


async def test_reader_waits_for_news():
    """Without news the reader waits; it gets each delta as it comes."""
    stream = TokenStream(on_leave=lambda: None)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.put(TokenDelta(token_ids=(1,)))
    assert await waiting == TokenDelta(token_ids=(1,))


async def test_tokens_come_before_the_error():
    """An error is raised after the tokens put before it, and then the stream is over."""
    stream = TokenStream(on_leave=lambda: None)
    stream.put(TokenDelta(token_ids=(1,)))
    stream.fail(Unavailable("gone"))
    assert (await anext(stream)).token_ids == (1,)
    with pytest.raises(Unavailable, match="gone"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_leaving_aborts_once():
    """A reader that leaves before the end aborts the request, once, and gets nothing more."""
    left: list[bool] = []
    stream = TokenStream(on_leave=lambda: left.append(True))
    stream.put(TokenDelta(token_ids=(1,)))
    await stream.aclose()
    stream.cancel()
    assert left == [True]
    assert [delta async for delta in stream] == []


async def test_leaving_an_ended_request_aborts_nothing():
    """A reader that leaves after the end, read or not, aborts nothing."""
    left: list[bool] = []
    stream = TokenStream(on_leave=lambda: left.append(True))
    stream.put(TokenDelta(token_ids=(1,), finish_reason=FinishReason.LENGTH))
    await stream.aclose()
    assert left == []


async def test_leaving_wakes_a_waiting_reader():
    """A reader that waits in another task ends when the stream is cancelled."""
    stream = TokenStream(on_leave=lambda: None)
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    stream.cancel()
    assert await waiting is None
