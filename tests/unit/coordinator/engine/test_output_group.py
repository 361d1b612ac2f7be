"""Several outputs of one request are read as one stream, and end together when they must."""

import asyncio
import logging
from collections import Counter

import pytest

from common.errors import AlreadyExists, Overloaded, Unavailable
from common.requests import FinishReason, TokenDelta
from coordinator.engine.engine import Engine
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.engine.measures import Measures
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=1)


def engine_on(loop: ScriptedLoop, measures: Measures | None = None) -> Engine:
    """An engine of the byte tokenizer on a scripted loop."""
    tokenizer = Tokenizer(byte_tokenizer(), template=None)
    return Engine(model=MODEL, tokenizer=tokenizer, loop=loop, measures=measures)


def asked(*prompts, **options) -> GenerationInput:
    """A request with the id "r", of two outputs unless told otherwise."""
    return GenerationInput(**({"request_id": "r", "prompts": prompts or ("hi",), "n": 2} | options))


async def test_every_output_arrives_whole_under_its_index():
    """Two prompts with two outputs each are four texts, each with one end."""
    loop = ScriptedLoop(deltas("he", "llo"))
    async with await engine_on(loop).generate(asked("a", "bc")) as outputs:
        received = [delta async for delta in outputs]
    texts = ["".join(d.text for d in received if d.index == index) for index in range(4)]
    assert texts == ["hello"] * 4
    assert Counter(d.index for d in received if d.finish_reason) == dict.fromkeys(range(4), 1)
    assert [d.num_prompt_tokens for d in sorted(received, key=lambda d: d.index)][::2] == [
        1,
        1,
        2,
        2,
    ]


async def test_what_comes_first_is_handed_over_first():
    """An output that has news does not wait for one that has none."""
    loop = ScriptedLoop()
    async with await engine_on(loop).generate(asked()) as outputs:
        loop.running["r.1"].events.put_nowait(TokenDelta(token_ids=tuple(b"x")))
        assert (await anext(outputs)).index == 1
        loop.running["r.0"].events.put_nowait(TokenDelta(token_ids=tuple(b"y")))
        assert (await anext(outputs)).index == 0
    assert not loop.running


async def test_an_output_that_ends_leaves_the_others_running():
    """The last to end ends the stream."""
    loop = ScriptedLoop()
    end = TokenDelta(token_ids=tuple(b"x"), finish_reason=FinishReason.STOP)
    async with await engine_on(loop).generate(asked()) as outputs:
        loop.running["r.0"].events.put_nowait(end)
        assert (await anext(outputs)).finish_reason is FinishReason.STOP
        assert set(loop.running) == {"r.1"}
        loop.running["r.1"].events.put_nowait(end)
        assert (await anext(outputs)).index == 1
        with pytest.raises(StopAsyncIteration):
            await anext(outputs)


async def test_an_error_of_one_ends_all():
    """A request is answered whole or not at all, and nothing goes on behind its back."""
    loop = ScriptedLoop()
    async with await engine_on(loop).generate(asked()) as outputs:
        loop.running["r.1"].events.put_nowait(Unavailable("stage 1 is gone"))
        with pytest.raises(Unavailable, match="stage 1"):
            await anext(outputs)
        assert not loop.running


async def test_a_reader_that_is_cancelled_frees_every_sequence():
    """Also before the first token of any output."""
    loop = ScriptedLoop()
    measures = Measures()
    engine = engine_on(loop, measures)

    async def read() -> None:
        async with await engine.generate(asked()) as outputs:
            await anext(outputs)

    reader = asyncio.create_task(read())
    await loop.submitted.wait()
    reader.cancel()
    await asyncio.wait({reader})
    assert not loop.running
    assert measures.requests.num_ended["abort"] == 2


async def test_a_group_that_nobody_reads_is_freed():
    """Closing it before the first delta lets go of all sequences and of the id."""
    loop = ScriptedLoop()
    engine = engine_on(loop)
    await (await engine.generate(asked())).aclose()
    assert not loop.running
    await (await engine.generate(asked())).aclose()


async def test_abort_ends_every_output_with_its_reason():
    """One id stands for all outputs; those of single sequences are no requests."""
    loop = ScriptedLoop()
    engine = engine_on(loop)
    async with await engine.generate(asked()) as outputs:
        engine.abort("r.0")
        engine.abort("r")
        reasons = [delta.finish_reason async for delta in outputs]
    assert reasons == [FinishReason.ABORT] * 2


@pytest.mark.parametrize("taken", ["r", "r.1"])
async def test_ids_of_outputs_are_taken_too(taken):
    """No other request may have the id of the whole or of one of its outputs."""
    loop = ScriptedLoop()
    engine = engine_on(loop)
    async with await engine.generate(asked(request_id=taken, n=1)):
        with pytest.raises(AlreadyExists, match=f"'{taken}'"):
            await engine.generate(asked())
    await (await engine.generate(asked())).aclose()


async def test_a_queue_without_room_for_all_takes_none():
    """The sequences that were taken before the refusal are let go of."""

    class Narrow(ScriptedLoop):
        """Takes one request at a time."""

        def submit(self, request, *rest):
            if self.running:
                raise Overloaded("full")
            return super().submit(request, *rest)

    loop, measures = Narrow(), Measures()
    engine = engine_on(loop, measures)
    with pytest.raises(Overloaded):
        await engine.generate(asked())
    assert not loop.running
    assert measures.requests.num_ended.total() == 0


async def test_log_lines_name_the_request_and_the_output(caplog):
    """All lines of a request are found by the id its client knows."""
    caplog.set_level(logging.INFO)
    async with await engine_on(ScriptedLoop(deltas("x"))).generate(asked()) as outputs:
        assert len([delta async for delta in outputs]) == 2
    lines = [(line.msg, vars(line)["request_id"], vars(line)["output"]) for line in caplog.records]
    assert sorted(lines) == [
        ("request accepted", "r", 0),
        ("request accepted", "r", 1),
        ("request ended", "r", 0),
        ("request ended", "r", 1),
    ]
