"""The engine accepts, checks, streams and frees requests."""

import asyncio
import contextlib

import pytest

from common.errors import AlreadyExists, Cancelled, InvalidRequest, Overloaded, Unavailable
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from coordinator.engine.engine import Engine, draw_seed
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel, TextDelta
from coordinator.engine.logprob_budget import MAX_OPEN_LOGPROBS
from coordinator.engine.measures import Measures
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.detokenizer import Detokenizer
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import CHAT_TEMPLATE, EOS_ID, VOCAB_SIZE, byte_tokenizer
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=1)


def engine_on(
    loop: ScriptedLoop, measures: Measures | None = None, *, tokenizer: Tokenizer | None = None
) -> Engine:
    """An engine of the byte tokenizer on a scripted loop, with seed 7 where none is given."""
    tokenizer = tokenizer or Tokenizer(byte_tokenizer(), template=ChatTemplate(CHAT_TEMPLATE))
    return Engine(
        model=MODEL, tokenizer=tokenizer, loop=loop, draw_seed=lambda: 7, measures=measures
    )


def asked(prompt="hi", **options) -> GenerationInput:
    """A request with the id "r"."""
    return GenerationInput(**({"request_id": "r", "prompts": (prompt,)} | options))


async def answer(loop: ScriptedLoop, request: GenerationInput) -> list[TextDelta]:
    """All deltas of one request."""
    async with await engine_on(loop).generate(request) as stream:
        return [delta async for delta in stream]


async def test_defaults_are_resolved_before_the_loop_sees_the_request():
    """Absent choices become a seed, temperature 1 and as many tokens as fit."""
    loop = ScriptedLoop(deltas("x"))
    await answer(loop, asked(prompt="hello"))
    (request,) = loop.requests
    assert request.prompt_token_ids == tuple(b"hello")
    assert (request.sampling.seed, request.sampling.temperature) == (7, 1.0)
    assert request.stopping.max_tokens == MODEL.max_model_len - 5


async def test_ended_requests_are_counted_by_their_reason():
    """A stop string counts as a stop, a reader that left as abort; refused ones count by their error."""
    loop, measures = ScriptedLoop(deltas("one END two", finish=None)), Measures()
    engine = engine_on(loop, measures)
    async with await engine.generate(asked(stop=("END",))) as stream:
        assert [delta.text async for delta in stream] == ["one "]
    loop.script = [Unavailable("gone")]
    with pytest.raises(Unavailable):
        async with await engine.generate(asked()) as stream:
            await anext(stream)
    await (await engine.generate(asked())).aclose()
    loop.refusal = Overloaded("full")
    with pytest.raises(Overloaded):
        await engine.generate(asked())
    counted = measures.requests
    assert counted.num_ended == {"stop": 1, "length": 0, "abort": 1, "error": 1}
    assert counted.num_refused == {"Overloaded": 1}
    assert counted.latency.num_values == counted.prompt_tokens.num_values == 3


async def test_tokens_are_counted_as_the_usage_tells_them():
    """What was generated behind a stop string was handed to nobody and does not count."""
    loop, measures = ScriptedLoop(deltas("one END two", finish=None)), Measures()
    async with await engine_on(loop, measures).generate(asked(stop=("END",))) as stream:
        last = [delta async for delta in stream][-1]
    counted = measures.requests
    assert counted.num_generated_tokens == last.num_generated_tokens == len("one END")
    assert counted.generated_tokens.total == last.num_generated_tokens
    assert counted.num_choices.counts[0] == 1


async def test_a_prompt_alone_is_told_without_the_token_drawn_for_it():
    """With echo and max_tokens 0 the text is the prompt's, nothing counts as generated, and it is full."""
    told = tuple(TokenLogprobs(token_id=token, logprob=-1.0, rank=1, top=()) for token in b"i!")
    drawn = TokenDelta(token_ids=(65,), prompt_logprobs=told, finish_reason=FinishReason.STOP)
    loop = ScriptedLoop([drawn])
    (first,) = await answer(
        loop, asked(prompt="hi!", echo=True, prompt_logprobs=0, logprobs=0, max_tokens=0)
    )
    assert (first.text, first.token_ids, first.num_generated_tokens) == ("", (), 0)
    assert first.prompt is not None
    assert (first.prompt.text, first.prompt.first_token.text) == ("hi!", "h")
    assert first.prompt.logprobs is not None
    assert [position.text_offset for position in first.prompt.logprobs] == [1, 2]
    assert first.finish_reason is FinishReason.LENGTH
    (request,) = loop.requests
    assert (request.stopping.max_tokens, request.sampling.num_logprobs) == (1, None)


async def test_log_probabilities_of_whole_vocabularies_are_free_again_when_a_request_ends():
    """As many requests as one likes ask for them one after the other."""
    engine = engine_on(ScriptedLoop(deltas("x")))
    for _ in range(2 * MAX_OPEN_LOGPROBS // (60 * VOCAB_SIZE)):
        await (await engine.generate(asked(logprobs=-1, max_tokens=60))).aclose()


async def test_seeds_are_drawn_anew():
    """Two requests without a seed do not draw the same tokens."""
    assert draw_seed() != draw_seed()


async def test_text_tokens_and_counts_add_up():
    """Deltas carry text, tokens and the counts so far; the last one the finish reason."""
    received = await answer(ScriptedLoop(deltas("he", "llo")), asked(prompt=(1, 2, 3)))
    assert [delta.text for delta in received] == ["he", "llo"]
    assert [delta.num_generated_tokens for delta in received] == [2, 5]
    assert {delta.num_prompt_tokens for delta in received} == {3}
    assert [delta.finish_reason for delta in received] == [None, FinishReason.STOP]


async def test_a_conversation_goes_through_the_template():
    """Turns are rendered and the assistant's turn is opened."""
    loop = ScriptedLoop(deltas("x"))
    await answer(loop, asked(prompt=(ChatTurn(role="user", content="hi"),)))
    assert bytes(token for token in loop.requests[0].prompt_token_ids if token < 256) == (
        b"user\nhi\nassistant\n"
    )


async def test_a_stop_string_over_deltas_ends_the_request():
    """The text stops before the string, the tokens with it, and the loop is told."""
    loop = ScriptedLoop(deltas("one EN", "D two", " three", finish=None))
    received = await answer(loop, asked(stop=("END",)))
    assert "".join(delta.text for delta in received) == "one "
    assert bytes(sum((delta.token_ids for delta in received), ())) == b"one END"
    assert received[-1].finish_reason is FinishReason.STOP
    assert received[-1].num_generated_tokens == 7
    assert not loop.running


async def test_an_open_character_ends_as_a_replacement():
    """An output cut inside a character by its length ends in U+FFFD."""
    script = [TokenDelta(token_ids=(0x61, 0xF0, 0x9F), finish_reason=FinishReason.LENGTH)]
    (delta,) = await answer(ScriptedLoop(script), asked())
    assert (delta.text, delta.finish_reason) == ("a\ufffd", FinishReason.LENGTH)


async def test_the_end_token_has_no_text():
    """The end-of-sequence token is counted and is not text."""
    script = [TokenDelta(token_ids=(0x61, EOS_ID), finish_reason=FinishReason.STOP)]
    (delta,) = await answer(ScriptedLoop(script), asked())
    assert (delta.text, delta.num_generated_tokens) == ("a", 2)


async def test_log_probabilities_name_their_tokens_and_offsets():
    """Every position has bytes, alternatives and the characters before it; none past a stop."""
    positions = tuple(
        TokenLogprobs(token_id=token, logprob=-0.5, rank=1, top=((token, -0.5), (0x62, -1.0)))
        for token in "éab".encode()
    )
    script = [TokenDelta(token_ids=tuple("éab".encode()), logprobs=positions)]
    (delta,) = await answer(ScriptedLoop(script), asked(stop=("a",), logprobs=2))
    assert delta.logprobs is not None
    assert [position.text_offset for position in delta.logprobs] == [0, 0, 1]
    assert delta.logprobs[2].chosen.text == "a"
    assert [token.text for token in delta.logprobs[2].top] == ["a", "b"]
    assert delta.logprobs[0].chosen.token_bytes == b"\xc3"


async def test_leaving_before_the_first_token_frees_the_request():
    """A reader cancelled while it waits for the first token leaves nothing behind."""
    loop = ScriptedLoop()
    reader = asyncio.create_task(answer(loop, asked()))
    await loop.submitted.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not loop.running


async def test_leaving_mid_stream_frees_the_request_and_its_id():
    """A closed stream ends, its request is freed, and the id can be used again."""
    loop = ScriptedLoop(deltas("a", "b", finish=None))
    engine = engine_on(loop)
    stream = await engine.generate(asked())
    await anext(stream)
    await stream.aclose()
    assert not loop.running
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    async with await engine.generate(asked()):
        assert "r" in loop.running


async def test_a_running_id_cannot_be_used_twice():
    """The second request with the same id is refused and does not disturb the first."""
    loop = ScriptedLoop(deltas("a"))
    engine = engine_on(loop)
    async with await engine.generate(asked()) as stream:
        with pytest.raises(AlreadyExists, match="'r'"):
            await engine.generate(asked())
        assert [delta.text async for delta in stream] == ["a"]


async def test_abort_ends_the_stream_with_its_reason():
    """An aborted request ends with finish reason ABORT; unknown ids are ignored."""
    engine = engine_on(ScriptedLoop(deltas("a", finish=None)))
    async with await engine.generate(asked()) as stream:
        engine.abort("unknown")
        engine.abort("r")
        assert [delta.finish_reason async for delta in stream] == [None, FinishReason.ABORT]


async def test_abort_while_tokenizing_submits_nothing():
    """A request aborted before it reached the loop never does, and its id is free."""
    loop = ScriptedLoop(deltas("a"))
    engine = engine_on(loop)
    submission = asyncio.create_task(engine.generate(asked()))
    await asyncio.sleep(0)
    engine.abort("r")
    with pytest.raises(Cancelled):
        await submission
    assert not loop.requests
    await (await engine.generate(asked())).aclose()


@pytest.mark.parametrize("refusal", [Overloaded("full"), InvalidRequest("too long")])
async def test_a_refused_request_leaves_its_id_free(refusal):
    """What the loop refuses reaches the caller, and the id is not taken."""
    loop = ScriptedLoop(deltas("a"), refusal=refusal)
    engine = engine_on(loop)
    with pytest.raises(type(refusal)):
        await engine.generate(asked())
    loop.refusal = None
    await (await engine.generate(asked())).aclose()


class OnceOutOfDetokenizers(Tokenizer):
    """Makes one detokenizer, fails at the second, and works from then on."""

    num_made = 0

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Make the detokenizer of one output."""
        self.num_made += 1
        if self.num_made == 2:
            raise MemoryError("no detokenizer")
        return super().detokenizer(skip_special_tokens=skip_special_tokens)


async def test_a_request_whose_outputs_cannot_be_made_is_freed():
    """What the loop has accepted is left when the caller gets an error in place of its outputs."""
    loop, measures = ScriptedLoop(deltas("a")), Measures()
    tokenizer = OnceOutOfDetokenizers(byte_tokenizer(), template=ChatTemplate(CHAT_TEMPLATE))
    engine = engine_on(loop, measures, tokenizer=tokenizer)
    with pytest.raises(MemoryError):
        await engine.generate(asked(n=2))
    assert len(loop.requests) == 2
    assert not loop.running
    assert measures.requests.num_choices.num_values == 0
    async with await engine.generate(asked()) as stream:
        assert [delta.text async for delta in stream] == ["a"]


async def test_a_failed_request_raises_and_is_freed():
    """The error of the loop ends the stream after what was delivered."""
    loop = ScriptedLoop([*deltas("a", finish=None), Unavailable("stage 1 is gone")])
    stream = await engine_on(loop).generate(asked())
    assert (await anext(stream)).text == "a"
    with pytest.raises(Unavailable, match="stage 1"):
        await anext(stream)
    assert not loop.running


async def test_the_gate_is_shut_until_the_engine_stands():
    """Before the start is over there is no engine, and the error says so."""
    gate = EngineGate()
    with pytest.raises(Unavailable, match="starting"):
        _ = gate.engine
    assert not gate.is_serving
    loop = ScriptedLoop()
    gate.open(engine_on(loop))
    assert gate.is_serving
    loop.is_serving = False
    assert not gate.is_serving


async def test_a_reader_that_does_not_finish_with_the_context_closes_it():
    """An exception in the reader's own code frees the request."""
    loop = ScriptedLoop(deltas("a", "b"))
    with contextlib.suppress(KeyError):
        async with await engine_on(loop).generate(asked()) as stream:
            await anext(stream)
            raise KeyError
    assert not loop.running
