"""One output of a request as text: tokens of committed steps in, text deltas out.

Ends an output whose text reached a stop string, and one whose reader left.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol

from common.errors import ServiceError
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from coordinator.engine.generation import PositionLogprobs, PromptText, TextDelta, TokenLogprob
from coordinator.engine.prompt_echo import PromptEcho
from coordinator.text.output_text import OutputText, TextPiece


class TokenSource(Protocol):
    """The tokens of one sequence as they are committed; closing it frees the sequence."""

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Iterate over what each step adds; raises a ServiceError when the request failed."""
        ...

    async def __anext__(self) -> TokenDelta:
        """Wait for tokens."""
        ...

    async def aclose(self) -> None:
        """Leave: end the request if it runs, and free its blocks."""
        ...


class TextStream:
    """Iterates over TextDeltas until the one with a finish reason; close it in every case.

    As an asynchronous context manager it closes itself, also when its reader is cancelled.
    """

    def __init__(
        self,
        tokens: TokenSource,
        text: OutputText,
        *,
        token_bytes: Callable[[int], bytes],
        num_prompt_tokens: int,
        on_close: Callable[["TextStream"], None],
        on_tokens: Callable[[int], None] = lambda count: None,
        index: int = 0,
        prompt: PromptEcho | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        delivers_tokens: bool = True,
    ) -> None:
        """Read from tokens; on_close is called once, when the output has ended.

        on_tokens is called with the number of tokens of each delta. prompt: what spells the prompt
        in the first delta. end_token_ids: tokens that are no text where they end the output.
        delivers_tokens: False keeps the output back, as the prompt alone counts.
        """
        self._tokens = tokens
        self._text = text
        self._token_bytes = token_bytes
        self._on_close = on_close
        self._on_tokens = on_tokens
        self._is_closed = False
        self._prompt = prompt
        self._end_token_ids = end_token_ids
        self._delivers_tokens = delivers_tokens
        self.index = index
        self.num_prompt_tokens = num_prompt_tokens
        self.num_generated_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.has_failed = False
        """Whether an error of the service ended it."""

    def __aiter__(self) -> "TextStream":
        """Be its own iterator: an output is read once."""
        return self

    async def __anext__(self) -> TextDelta:
        """Wait for the next delta; raises the ServiceError that ended the request."""
        if self._is_closed:
            raise StopAsyncIteration
        try:
            delta = self._text_delta(await anext(self._tokens))
        except BaseException as error:
            self.has_failed = isinstance(error, ServiceError)
            await self.aclose()
            raise
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            await self.aclose()
        return delta

    async def aclose(self) -> None:
        """Free the request, whether or not it has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._tokens.aclose()
        finally:
            self._on_close(self)

    async def __aenter__(self) -> "TextStream":
        """Hand out the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.aclose()

    def _text_delta(self, tokens: TokenDelta) -> TextDelta:
        prompt = self._take_prompt(tokens)
        if not self._delivers_tokens:
            tokens = _without_tokens(tokens)
        is_ended = tokens.finish_reason is FinishReason.STOP
        hides_last = is_ended and tokens.token_ids[-1] in self._end_token_ids
        piece = self._text.push(tokens.token_ids, hides_last=hides_last)
        text, stop_string = piece.text, piece.stop_string
        if tokens.finish_reason is not None and not piece.is_stopped:
            last = self._text.flush()
            text += last.text
            stop_string = last.stop_string
        num_tokens = len(piece.offsets)
        self.num_generated_tokens += num_tokens
        self._on_tokens(num_tokens)
        return TextDelta(
            text=text,
            token_ids=tokens.token_ids[:num_tokens],
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_cached_tokens=tokens.num_cached_tokens,
            index=self.index,
            logprobs=self._logprobs(tokens, piece),
            finish_reason=tokens.finish_reason if stop_string is None else FinishReason.STOP,
            stop_string=stop_string,
            prompt=prompt,
        )

    def _take_prompt(self, tokens: TokenDelta) -> PromptText | None:
        # What ends a request from outside before its first token knows no prompt.
        if self._prompt is None or not tokens.token_ids:
            return None
        prompt, self._prompt = self._prompt, None
        return prompt.spell(tokens.prompt_logprobs)

    def _logprobs(
        self, tokens: TokenDelta, piece: TextPiece
    ) -> tuple[PositionLogprobs, ...] | None:
        """Log-probabilities of the tokens used; those past a stop string are dropped with them."""
        if tokens.logprobs is None:
            return None
        return tuple(
            self._position(position, offset)
            for position, offset in zip(tokens.logprobs, piece.offsets, strict=False)
        )

    def _position(self, position: TokenLogprobs, offset: int) -> PositionLogprobs:
        return PositionLogprobs(
            chosen=self._token(position.token_id, position.logprob),
            rank=position.rank,
            top=tuple(self._token(token_id, logprob) for token_id, logprob in position.top),
            text_offset=offset,
        )

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(
            token_id=token_id, token_bytes=self._token_bytes(token_id), logprob=logprob
        )


def _without_tokens(tokens: TokenDelta) -> TokenDelta:
    """What is left of a token that was drawn and not asked for: the output was full without it."""
    reason = FinishReason.LENGTH if tokens.token_ids else tokens.finish_reason
    return replace(tokens, token_ids=(), logprobs=None, finish_reason=reason)
