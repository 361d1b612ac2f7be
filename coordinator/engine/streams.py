"""The tokens of one request on their way from the loop to its reader. Knows no text."""

import asyncio
from collections.abc import Callable

from common.errors import ServiceError
from common.requests import FinishReason, TokenDelta, TokenLogprobs


class TokenStream:
    """Async iterator of TokenDeltas; what waits for the reader is handed over as one delta.

    Ends after the delta with a finish reason, or raises the ServiceError that ended the request, after
    the tokens that came before it. Bounded without back-pressure: it never holds more than the
    request's max_tokens. The reader leaves it by `cancel` or `aclose`, which aborts the request.
    """

    def __init__(self, *, on_leave: Callable[[], object]) -> None:
        """on_leave is called once, when the reader leaves before the end."""
        self._on_leave = on_leave
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self._finish_reason: FinishReason | None = None
        self._num_cached_tokens = 0
        self._error: ServiceError | None = None
        self._has_news = asyncio.Event()
        self._is_read_to_end = False

    def put(self, delta: TokenDelta) -> None:
        """Add what a step brought; for the loop."""
        self._token_ids.extend(delta.token_ids)
        self._logprobs.extend(delta.logprobs or ())
        self._finish_reason = delta.finish_reason
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        # What ends a request from outside knows nothing of its prompt.
        self._num_cached_tokens = self._num_cached_tokens or delta.num_cached_tokens
        self._has_news.set()

    def fail(self, error: ServiceError) -> None:
        """End with an error once the reader has what was put before; for the loop."""
        self._error = error
        self._has_news.set()

    def cancel(self) -> None:
        """Leave: abort the request if it still runs, and drop what waits."""
        if self._is_read_to_end:
            return
        self._is_read_to_end = True
        if self._finish_reason is None and self._error is None:
            self._on_leave()
        self._has_news.set()

    async def aclose(self) -> None:
        """Leave, in the form of `contextlib.aclosing`."""
        self.cancel()

    def __aiter__(self) -> "TokenStream":
        """Be its own iterator; there is one reader."""
        return self

    async def __anext__(self) -> TokenDelta:
        """Wait for news and take all of it."""
        await self._has_news.wait()
        if self._is_read_to_end:
            raise StopAsyncIteration
        if self._token_ids or self._finish_reason is not None:
            return self._take()
        self._is_read_to_end = True
        assert self._error is not None, "there are news: tokens, an end or an error"
        raise self._error

    def _take(self) -> TokenDelta:
        delta = TokenDelta(
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs) if self._logprobs else None,
            prompt_logprobs=self._prompt_logprobs,
            finish_reason=self._finish_reason,
            num_cached_tokens=self._num_cached_tokens,
        )
        self._token_ids.clear()
        self._logprobs.clear()
        self._prompt_logprobs = None
        self._is_read_to_end = self._finish_reason is not None
        if not self._is_read_to_end and self._error is None:
            self._has_news.clear()
        return delta
