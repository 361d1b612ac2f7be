"""Submit and abort: all that the APIs see of the coordinator.

A request is checked here, tokenized, handed to the loop, and its tokens come back as text.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

from common.errors import AlreadyExists, Cancelled
from common.requests import Request
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel
from coordinator.engine.limits import build_request, check_input
from coordinator.engine.text_stream import TextStream, TokenSource
from coordinator.text.output_text import OutputText
from coordinator.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class RequestLoop(Protocol):
    """What the engine needs of the loop that owns the scheduler."""

    @property
    def is_serving(self) -> bool:
        """Whether steps can run."""
        ...

    def submit(self, request: Request) -> TokenSource:
        """Queue a request; raises Overloaded, Unavailable or InvalidRequest."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request with the finish reason ABORT; an unknown id is ignored."""
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
    ) -> None:
        """Wire the parts; the loop runs elsewhere."""
        self._model = model
        self._tokenizer = tokenizer
        self._loop = loop
        self._draw_seed = draw_seed
        self._claims: dict[str, _Claim] = {}
        self.num_ended: Counter[str] = Counter()
        """Accepted requests that have ended, by finish reason; "none": by an error or a reader that left."""

    @property
    def is_serving(self) -> bool:
        """Whether new requests are accepted."""
        return self._loop.is_serving

    def models(self) -> tuple[ServedModel, ...]:
        """The served models."""
        return (self._model,)

    async def generate(self, asked: GenerationInput) -> TextStream:
        """Accept a request and return its output, to be closed by the caller.

        Raises InvalidRequest, NotFound, AlreadyExists, Overloaded or Unavailable; nothing is held
        then. A caller cancelled in here has submitted nothing.
        """
        check_input(asked, model=self._model)
        if asked.request_id in self._claims:
            raise AlreadyExists(f"a request with the id {asked.request_id!r} is running")
        claim = self._claims[asked.request_id] = _Claim(asked.request_id)
        try:
            return await self._submit(asked, claim)
        except BaseException:
            self._release(claim)
            raise

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ids are ignored."""
        claim = self._claims.get(request_id)
        if claim is None:
            return
        if claim.is_submitted:
            self._loop.abort(request_id)
        else:
            # Still being tokenized: losing its claim is what keeps it from being submitted.
            self._release(claim)

    async def _submit(self, asked: GenerationInput, claim: "_Claim") -> TextStream:
        token_ids = await self._encode(asked.prompt)
        if self._claims.get(asked.request_id) is not claim:
            raise Cancelled(f"request {asked.request_id!r} was aborted before it ran")
        request = build_request(asked, token_ids, model=self._model, draw_seed=self._draw_seed)
        tokens = self._loop.submit(request)
        claim.is_submitted = True
        _log_accepted(request)
        return TextStream(
            tokens,
            OutputText(self._tokenizer.detokenizer(), asked.stop),
            token_bytes=self._tokenizer.token_bytes,
            num_prompt_tokens=len(token_ids),
            on_close=lambda stream: self._end(claim, stream),
        )

    async def _encode(
        self, prompt: str | tuple[int, ...] | tuple[ChatTurn, ...]
    ) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return await self._tokenizer.encode_text(prompt)
        if isinstance(prompt[0], ChatTurn):
            turns = cast("tuple[ChatTurn, ...]", prompt)
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            return await self._tokenizer.encode_chat(messages)
        return cast("tuple[int, ...]", prompt)

    def _release(self, claim: "_Claim") -> None:
        if self._claims.get(claim.request_id) is claim:
            del self._claims[claim.request_id]

    def _end(self, claim: "_Claim", stream: TextStream) -> None:
        self._release(claim)
        reason = "none" if stream.finish_reason is None else stream.finish_reason.value
        self.num_ended[reason] += 1
        logger.info(
            "request ended",
            extra={
                "request_id": claim.request_id,
                "finish_reason": reason,
                "generated_tokens": stream.num_generated_tokens,
            },
        )


class _Claim:
    """The right of one request to its id, and whether the loop has it yet."""

    __slots__ = ("is_submitted", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_submitted = False


def _log_accepted(request: Request) -> None:
    logger.info(
        "request accepted",
        extra={
            "request_id": request.request_id,
            "prompt_tokens": len(request.prompt_token_ids),
            "max_tokens": request.stopping.max_tokens,
        },
    )
