"""Facts of the span of a request, from the engine that makes it."""

import logging

import pytest

from common.errors import InvalidRequest, Overloaded, Unavailable
from coordinator.engine.engine import Engine
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.fakes.noted_spans import CLIENT, NotedSpans
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=1)


def engine_on(loop: ScriptedLoop, tracer: NotedSpans | None = None) -> Engine:
    """An engine of the byte tokenizer on a scripted loop."""
    tokenizer = Tokenizer(byte_tokenizer(), template=None)
    return Engine(model=MODEL, tokenizer=tokenizer, loop=loop, tracer=tracer)


def asked(**options) -> GenerationInput:
    """A request with the id "r" of a client that is traced."""
    return GenerationInput(**({"request_id": "r", "prompts": ("hi",), "trace": CLIENT} | options))


async def test_the_clients_trace_reaches_the_loop_without_a_tracer():
    """Ranks become children of the client's span."""
    loop = ScriptedLoop(deltas("x"))
    async with await engine_on(loop).generate(asked()) as stream:
        async for _ in stream:
            pass
    assert [request.trace for request in loop.requests] == [CLIENT]


async def test_one_span_stands_for_all_outputs():
    """A child of the client's; ranks are its children, and it ends with the last output."""
    loop, tracer = ScriptedLoop(deltas("he", "llo")), NotedSpans()
    async with await engine_on(loop, tracer).generate(asked(n=2, max_tokens=9)) as outputs:
        (span,) = tracer.spans
        assert span.attributes is None
        async for _ in outputs:
            pass
    assert (span.parent, span.is_entry, span.failure) == (CLIENT, True, None)
    assert [request.trace for request in loop.requests] == [span.context] * 2
    assert span.attributes == {
        "gen_ai.request.id": "r",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": "stop",
        "gen_ai.usage.prompt_tokens": 4,
        "gen_ai.usage.completion_tokens": 10,
    }


@pytest.mark.parametrize(
    ("options", "refusal"), [({"max_tokens": 0}, InvalidRequest), ({}, Overloaded)]
)
async def test_a_refused_request_has_a_failed_span(options, refusal):
    """Whether the edge or the queue refused it."""
    loop, tracer = ScriptedLoop(refusal=Overloaded("the queue is full")), NotedSpans()
    with pytest.raises(refusal) as caught:
        await engine_on(loop, tracer).generate(asked(**options))
    (span,) = tracer.spans
    assert span.failure == str(caught.value)


async def test_an_error_on_the_way_is_the_end_of_the_span():
    """So is a reader that leaves."""
    loop, tracer = ScriptedLoop([Unavailable("gone")]), NotedSpans()
    engine = engine_on(loop, tracer)
    with pytest.raises(Unavailable):
        async with await engine.generate(asked()) as stream:
            await anext(stream)
    await (await engine.generate(asked())).aclose()
    ends = [span.attributes["gen_ai.response.finish_reasons"] for span in tracer.spans]
    assert ends == ["error", "abort"]


async def test_log_lines_of_a_request_name_its_trace(caplog):
    """When it was accepted and when it ended; those of a request without one name none."""
    caplog.set_level(logging.INFO)
    engine = engine_on(ScriptedLoop(deltas("x")))
    for trace in (CLIENT, None):
        async with await engine.generate(asked(trace=trace)) as stream:
            async for _ in stream:
                pass
    told = [
        (record.message, getattr(record, "trace_id", None))
        for record in caplog.records
        if record.message.startswith("request ")
    ]
    assert told == [
        ("request accepted", CLIENT.trace_id),
        ("request ended", CLIENT.trace_id),
        ("request accepted", None),
        ("request ended", None),
    ]
