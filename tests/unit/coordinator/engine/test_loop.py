"""Facts of the engine loop, over the real executor and scripted workers."""

import asyncio
import logging

import pytest

from common.config import ScheduleConfig
from common.errors import AlreadyExists, ServiceError, StepFailed, Unavailable, WorkerLost
from common.requests import FinishReason
from coordinator.engine.streams import TokenStream
from tests.fakes.scripted_engine import scripted_engine
from tests.fakes.scripted_model import scripted_tokens
from tests.fakes.scripted_replica import request
from tests.fakes.scripted_worker import ScriptedWorker


async def _read(stream: TokenStream) -> tuple[tuple[int, ...], FinishReason | None]:
    """All tokens of a stream and its finish reason."""
    deltas = [delta async for delta in stream]
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    return token_ids, deltas[-1].finish_reason


@pytest.mark.parametrize("num_stages", [1, 3])
async def test_requests_get_their_tokens(num_stages: int):
    """Concurrent requests end with the tokens of their own prompts, and all blocks are free."""
    async with scripted_engine(num_stages=num_stages) as engine:
        prompts = [(index, index + 1) for index in range(6)]
        streams = [
            engine.loop.submit(request(prompt, max_tokens=5, request_id=str(prompt)))
            for prompt in prompts
        ]
        outputs = await asyncio.gather(*map(_read, streams))
        assert outputs == [(scripted_tokens(p, 5), FinishReason.LENGTH) for p in prompts]
        assert engine.scheduler.num_free_blocks == 63
        assert engine.loop.num_open == 0


async def test_serving_begins_with_the_warm_up_step():
    """Before the warm-up step is committed requests are refused; then the change is told once."""
    async with scripted_engine(is_warm=False) as engine:
        assert not engine.loop.is_serving
        with pytest.raises(Unavailable, match="starting"):
            engine.loop.submit(request((1,), max_tokens=1))
        await engine.loop.wait_until_serving()
        assert engine.loop.is_serving
        assert engine.loop.last_step == 1
        assert engine.serving_changes == [True]
        assert engine.workers[0].executed[0].new_requests[0].block_ids[0].tolist() == [0]


async def test_failed_warm_up_names_its_cause():
    """A worker that fails the warm-up step keeps the loop from serving, with the cause."""
    async with scripted_engine(is_warm=False) as engine:
        engine.workers[0].fail_step(1, StepFailed("no kernel for this shape"))
        with pytest.raises(StepFailed, match="no kernel for this shape"):
            await engine.run
        with pytest.raises(Unavailable, match="no kernel for this shape"):
            engine.loop.submit(request((1,), max_tokens=1))
        assert engine.serving_changes == []


async def test_request_id_in_use_is_refused():
    """A second request with the id of a running one is refused."""
    async with scripted_engine() as engine:
        stream = engine.loop.submit(request((1,), max_tokens=50))
        with pytest.raises(AlreadyExists):
            engine.loop.submit(request((2,), max_tokens=1))
        await stream.aclose()
        again = engine.loop.submit(request((2,), max_tokens=1))
        assert await _read(again) == (scripted_tokens((2,), 1), FinishReason.LENGTH)


@pytest.mark.parametrize("num_deltas", [0, 2])
async def test_leaving_a_stream_frees_its_blocks(num_deltas: int):
    """A reader that leaves, before the first token or after some, frees all blocks of its request."""
    async with scripted_engine(num_stages=2) as engine:
        stream = engine.loop.submit(request((1, 2, 3), max_tokens=400))
        for _ in range(num_deltas):
            await anext(stream)
        await stream.aclose()
        assert engine.scheduler.num_free_blocks == 63
        assert engine.loop.num_open == 0


async def test_abort_ends_the_stream_with_a_reason():
    """An aborted request's reader gets what waited and the finish reason ABORT."""
    async with scripted_engine() as engine:
        stream = engine.loop.submit(request((1,), max_tokens=400))
        await anext(stream)
        engine.loop.abort("a")
        engine.loop.abort("a")
        _, reason = await _read(stream)
        assert reason is FinishReason.ABORT
        assert engine.scheduler.num_free_blocks == 63


async def test_the_prefix_cache_is_emptied_between_requests():
    """While a request is open nothing is forgotten; after it the next one finds nothing."""
    prompt = tuple(range(20))
    async with scripted_engine() as engine:
        stream = engine.loop.submit(request(prompt, max_tokens=3, request_id="a"))
        assert not await engine.loop.reset_prefix_cache(0.0)
        emptied = asyncio.create_task(engine.loop.reset_prefix_cache(30.0))
        await _read(stream)
        assert await emptied
        await _read(engine.loop.submit(request(prompt, max_tokens=3, request_id="b")))
        assert engine.scheduler.counters.num_cached_tokens == 0
        await _read(engine.loop.submit(request(prompt, max_tokens=3, request_id="c")))
        assert engine.scheduler.counters.num_cached_tokens == 16


async def test_failed_request_ends_alone():
    """A request that the workers could not run ends with the worker's message; others go on."""
    async with scripted_engine(poison_token_id=200) as engine:
        bad = engine.loop.submit(request((200,), max_tokens=4, request_id="bad"))
        good = engine.loop.submit(request((1,), max_tokens=4, request_id="good"))
        with pytest.raises(ServiceError, match="poisoned prompt"):
            await anext(bad)
        assert (await _read(good))[0] == scripted_tokens((1,), 4)
        assert engine.loop.is_serving


async def test_lost_worker_ends_every_request_with_the_cause():
    """Running and waiting requests end as Unavailable naming rank and cause, and so do later ones."""
    schedule = ScheduleConfig(max_num_seqs=1)
    async with scripted_engine(num_stages=2, schedule=schedule) as engine:
        streams = [
            engine.loop.submit(request((index,), max_tokens=400, request_id=str(index)))
            for index in range(2)
        ]
        await anext(streams[0])
        engine.workers[1].lose("exited with signal 9")
        for stream in streams:
            with pytest.raises(Unavailable, match=r"stage 1 .*signal 9"):
                await _read(stream)
        with pytest.raises(Unavailable, match=r"stage 1 .*signal 9"):
            engine.loop.submit(request((1,), max_tokens=1))
        with pytest.raises(WorkerLost):
            await engine.run
        assert not engine.loop.is_serving
        assert engine.serving_changes == [True, False]
        assert engine.scheduler.num_free_blocks == 63


async def test_a_step_answered_before_a_loss_is_delivered():
    """A worker that is lost in a step planned ahead takes no token of the answered one away."""
    workers: list[ScriptedWorker] = []

    async def lose_in_third_step(_: float) -> None:
        # The second step is answered by now, and the loop has not heard of it yet.
        if workers and len(workers[0].executed) == 3:
            workers[0].lose("exited with signal 9")
        await asyncio.sleep(0)

    async with scripted_engine(sleep=lose_in_third_step) as engine:
        workers += engine.workers
        ended = engine.loop.submit(request((1,), max_tokens=1, request_id="ended"))
        cut = engine.loop.submit(request((2,), max_tokens=9, request_id="cut"))
        assert await _read(ended) == (scripted_tokens((1,), 1), FinishReason.LENGTH)
        with pytest.raises(Unavailable, match=r"signal 9"):
            await _read(cut)


async def test_failed_step_ends_every_request_with_the_cause():
    """A step that fails on any rank ends all streams, naming the rank."""
    async with scripted_engine(num_stages=2) as engine:
        engine.workers[0].fail_step(3, StepFailed("out of memory"))
        stream = engine.loop.submit(request((1,), max_tokens=400))
        with pytest.raises(Unavailable, match=r"stage 0 .*out of memory"):
            await _read(stream)
        with pytest.raises(StepFailed, match="stage 0"):
            await engine.run


async def test_ended_loop_leaves_no_stream_open():
    """A loop that is cancelled ends its streams with an error."""
    async with scripted_engine() as engine:
        stream = engine.loop.submit(request((1,), max_tokens=400))
        engine.run.cancel()
        with pytest.raises(Unavailable, match="has ended"):
            await _read(stream)


async def test_lowered_sequence_limit_is_logged(caplog: pytest.LogCaptureFixture):
    """More sequences than tokens in a step: the lowered limit is logged once."""
    schedule = ScheduleConfig(max_num_seqs=8, max_num_batched_tokens=4)
    with caplog.at_level(logging.WARNING):
        async with scripted_engine(schedule=schedule):
            assert caplog.messages.count("max_num_seqs lowered to the token budget") == 1
