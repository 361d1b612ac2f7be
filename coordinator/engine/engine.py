"""Submit and abort: all that the APIs see of the coordinator.

A request is checked here, tokenized, handed to the loop as its sequences, and their tokens come back
as text.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol, cast

from common.clock import Clock, SystemClock
from common.errors import AlreadyExists, Cancelled, ServiceError
from common.requests import FinishReason, Request
from common.trace_context import log_fields
from common.tracing import NoTracer, Tracer
from coordinator.engine.generation import ChatTurn, GenerationInput, Prompt, ServedModel
from coordinator.engine.logprob_budget import LogprobBudget, count_whole_vocabularies
from coordinator.engine.measures import Measures
from coordinator.engine.output_group import OutputGroup, Outputs
from coordinator.engine.prompt_echo import PromptEcho
from coordinator.engine.request_building import build_requests, sequence_ids
from coordinator.engine.request_checks import check_input, check_text_length
from coordinator.engine.request_measures import ERROR
from coordinator.engine.request_span import SPAN_NAME, RequestSpan
from coordinator.engine.request_times import RequestTimes
from coordinator.engine.text_stream import TextStream, TokenSource
from coordinator.scheduling.sequence import TokenMatcher
from coordinator.structured.compiler import GrammarCompiler
from coordinator.structured.constraint import Constraint
from coordinator.text.output_text import OutputText
from coordinator.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class RequestLoop(Protocol):
    """What the engine needs of the loop that owns the scheduler."""

    @property
    def is_serving(self) -> bool:
        """Whether steps can run."""
        ...

    def submit(
        self,
        request: Request,
        times: RequestTimes | None = None,
        matcher: TokenMatcher | None = None,
    ) -> TokenSource:
        """Queue a request, whose moments are noted in times.

        Raises Overloaded, Unavailable or InvalidRequest.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request with the finish reason ABORT; an unknown id is ignored."""
        ...

    async def reset_prefix_cache(self, seconds: float) -> bool:
        """Empty the prefix cache once no request is open; False when one is for so many seconds."""
        ...


def draw_seed() -> int:
    """A seed nobody can foresee, in [0, 2**63)."""
    return secrets.randbits(63)


class Engine:
    """Serves one model: checked requests in, streams of text out."""

    def __init__(
        self,
        *,
        model: ServedModel,
        tokenizer: Tokenizer,
        loop: RequestLoop,
        draw_seed: Callable[[], int] = draw_seed,
        clock: Clock | None = None,
        measures: Measures | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Wire the parts; the loop runs elsewhere. measures is written to."""
        self._model = model
        self._tokenizer = tokenizer
        self._grammars = GrammarCompiler(
            tokenizer.to_json,
            vocab_size=model.vocab_size,
            eos_token_ids=sorted(model.eos_token_ids),
        )
        self._loop = loop
        self._draw_seed = draw_seed
        self._claims: dict[str, _Claim] = {}
        self._logprob_budget = LogprobBudget()
        self._clock = clock or SystemClock()
        self._measures = (measures or Measures()).requests
        self._tracer = tracer or NoTracer()

    @property
    def is_serving(self) -> bool:
        """Whether new requests are accepted."""
        return self._loop.is_serving

    def models(self) -> tuple[ServedModel, ...]:
        """The served models."""
        return (self._model,)

    async def generate(self, asked: GenerationInput) -> Outputs:
        """Accept a request and return its outputs, to be closed by the caller.

        Raises InvalidRequest, NotFound, AlreadyExists, Overloaded or Unavailable; nothing is held
        then. A caller cancelled in here has submitted nothing.
        """
        arrived = self._clock.monotonic()
        span = RequestSpan(self._tracer.start(SPAN_NAME, asked.trace, is_entry=True))
        try:
            check_input(asked, model=self._model)
            return await self._generate(replace(asked, trace=span.context), span, arrived)
        except BaseException as error:
            span.refuse(request_id=asked.request_id, cause=str(error) or type(error).__name__)
            if isinstance(error, ServiceError):
                self._measures.num_refused[type(error).__name__] += 1
            raise

    def abort(self, request_id: str) -> None:
        """End all outputs of a request, wherever they are; unknown ids are ignored."""
        claim = self._claims.get(request_id)
        if claim is None or claim.request_id != request_id:
            return
        if claim.is_submitted:
            for name in claim.sequence_ids:
                self._loop.abort(name)
        else:
            # Still being tokenized: losing its claim is what keeps it from being submitted.
            self._release(claim)

    async def reset_prefix_cache(self, seconds: float) -> bool:
        """Empty the prefix cache once no request is open; False when one is for so many seconds."""
        return await self._loop.reset_prefix_cache(seconds)

    async def _generate(self, asked: GenerationInput, span: RequestSpan, arrived: float) -> Outputs:
        claim = self._claim(asked, span)
        try:
            return await self._submit(asked, claim, arrived=arrived)
        except BaseException:
            self._release(claim)
            raise

    def _claim(self, asked: GenerationInput, span: RequestSpan) -> "_Claim":
        claim = _Claim(asked.request_id, sequence_ids(asked), span)
        for name in claim.names:
            if name in self._claims:
                raise AlreadyExists(f"a request with the id {name!r} is running")
        self._claims |= dict.fromkeys(claim.names, claim)
        return claim

    async def _submit(self, asked: GenerationInput, claim: "_Claim", *, arrived: float) -> Outputs:
        token_ids = [await self._encode(prompt) for prompt in asked.prompts]
        bad_words = await self._tokenizer.encode_words(asked.bad_words) if asked.bad_words else ()
        if self._claims.get(asked.request_id) is not claim:
            raise Cancelled(f"request {asked.request_id!r} was aborted before it ran")
        make_matcher = await self._compile(asked.constraint)
        requests = build_requests(
            asked,
            token_ids,
            model=self._model,
            draw_seed=self._draw_seed,
            bad_words=bad_words,
        )
        num_values = count_whole_vocabularies(requests, model=self._model)
        self._logprob_budget.take(num_values)
        claim.num_whole_logprobs = num_values
        times = [RequestTimes(arrived=arrived) for _ in requests]
        sources = await self._submit_all(requests, times, make_matcher)
        # Nobody but the caller ends what runs from here on, so it must get its outputs.
        async with _left_unless_handed_out(sources):
            outputs = [
                self._output(source, asked, claim, index=index, request=request, times=moments)
                for index, (source, request, moments) in enumerate(
                    zip(sources, requests, times, strict=True)
                )
            ]
            for index, request in enumerate(requests):
                _log_accepted(request, claim.log_fields(index))
            claim.is_submitted = True
            self._measures.num_choices.add(asked.num_choices, len(asked.prompts))
            return outputs[0] if len(outputs) == 1 else OutputGroup(outputs)

    async def _submit_all(
        self,
        requests: Sequence[Request],
        times: Sequence[RequestTimes],
        make_matcher: Callable[[], TokenMatcher | None],
    ) -> list[TokenSource]:
        """Hand all sequences to the loop or none: no step comes between them."""
        sources: list[TokenSource] = []
        async with _left_unless_handed_out(sources):
            for request, moments in zip(requests, times, strict=True):
                sources.append(self._loop.submit(request, moments, make_matcher()))
        return sources

    def _output(
        self,
        source: TokenSource,
        asked: GenerationInput,
        claim: "_Claim",
        *,
        index: int,
        request: Request,
        times: RequestTimes,
    ) -> TextStream:
        return TextStream(
            source,
            OutputText(
                self._tokenizer.detokenizer(skip_special_tokens=asked.skip_special_tokens),
                asked.stop,
                min_tokens=asked.min_tokens or 0,
            ),
            token_bytes=self._tokenizer.token_bytes,
            num_prompt_tokens=len(request.prompt_token_ids),
            on_close=lambda stream: self._end(claim, stream, request=request, times=times),
            on_tokens=self._measures.note_generated,
            index=index,
            prompt=self._prompt_echo(asked, request),
            end_token_ids=self._model.eos_token_ids | set(asked.stop_token_ids),
            delivers_tokens=asked.max_tokens != 0,
        )

    def _prompt_echo(self, asked: GenerationInput, request: Request) -> PromptEcho | None:
        if not asked.echo and request.sampling.num_prompt_logprobs is None:
            return None
        return PromptEcho(
            request.prompt_token_ids,
            detokenizer=self._tokenizer.detokenizer(skip_special_tokens=asked.skip_special_tokens),
            token_bytes=self._tokenizer.token_bytes,
            has_text=asked.echo,
        )

    async def _compile(self, constraint: Constraint | None) -> Callable[[], TokenMatcher | None]:
        """What makes the grammar of each output."""
        if constraint is None:
            return _no_grammar
        return await self._grammars.compile(constraint)

    async def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        longest = self._tokenizer.max_token_characters
        check_text_length(prompt, max_token_characters=longest, model=self._model)
        if isinstance(prompt, str):
            return await self._tokenizer.encode_text(prompt)
        if isinstance(prompt[0], ChatTurn):
            turns = cast("tuple[ChatTurn, ...]", prompt)
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            return await self._tokenizer.encode_chat(messages)
        return cast("tuple[int, ...]", prompt)

    def _release(self, claim: "_Claim") -> None:
        self._logprob_budget.give_back(claim.num_whole_logprobs)
        claim.num_whole_logprobs = 0
        for name in claim.names:
            if self._claims.get(name) is claim:
                del self._claims[name]

    def _end(
        self, claim: "_Claim", stream: TextStream, *, request: Request, times: RequestTimes
    ) -> None:
        claim.num_open -= 1
        reason, num_tokens = _reason(stream), stream.num_generated_tokens
        claim.span.note_output(request, times, num_tokens=num_tokens)
        if not claim.num_open:
            self._release(claim)
            claim.span.end(request_id=claim.request_id, model=self._model.name, end=reason)
        self._measures.note_ended(
            request,
            times,
            end=reason,
            num_tokens=num_tokens,
            now=self._clock.monotonic(),
        )
        logger.info(
            "request ended",
            extra={
                **claim.log_fields(stream.index),
                "finish_reason": reason,
                "generated_tokens": num_tokens,
                **log_fields(request.trace),
            },
        )


def _no_grammar() -> None:
    """An output that may be anything."""


class _Claim:
    """The right of one request to its id and its sequences', and whether the loop has them yet.

    num_whole_logprobs: what it took of the budget of log-probabilities.
    """

    __slots__ = (
        "is_submitted",
        "num_open",
        "num_whole_logprobs",
        "request_id",
        "sequence_ids",
        "span",
    )

    def __init__(self, request_id: str, sequence_ids: tuple[str, ...], span: RequestSpan) -> None:
        self.request_id = request_id
        self.span = span
        self.sequence_ids = sequence_ids
        self.num_open = len(sequence_ids)
        self.is_submitted = False
        self.num_whole_logprobs = 0

    @property
    def names(self) -> frozenset[str]:
        """Every id that is taken as long as the request runs."""
        return frozenset((self.request_id, *self.sequence_ids))

    def log_fields(self, index: int) -> dict[str, object]:
        """What names an output in the log: the request, and which of several it is."""
        which: dict[str, object] = {} if len(self.sequence_ids) == 1 else {"output": index}
        return {"request_id": self.request_id, **which}


@asynccontextmanager
async def _left_unless_handed_out(sources: Sequence[TokenSource]) -> AsyncIterator[None]:
    """Leave what was submitted when the body raises; whoever asked never hears of it."""
    try:
        yield
    except BaseException:
        for source in sources:
            await source.aclose()
        raise


def _reason(stream: TextStream) -> str:
    """Why an output ended; a reader that left has aborted it."""
    if stream.has_failed:
        return ERROR
    return (stream.finish_reason or FinishReason.ABORT).value


def _log_accepted(request: Request, names: Mapping[str, object]) -> None:
    logger.info(
        "request accepted",
        extra={
            **names,
            "prompt_tokens": len(request.prompt_token_ids),
            "max_tokens": request.stopping.max_tokens,
            **log_fields(request.trace),
        },
    )
