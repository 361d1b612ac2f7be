"""A request loop whose tokens a test writes down; stands in for scheduler and workers."""

import asyncio
from collections.abc import Sequence

from common.requests import FinishReason, Request, TokenDelta
from coordinator.engine.request_times import RequestTimes
from coordinator.scheduling.sequence import TokenMatcher

Script = Sequence[TokenDelta | Exception]


def deltas(*texts: str, finish: FinishReason | None = FinishReason.STOP) -> list[TokenDelta]:
    """One delta per text, in tokens of the byte tokenizer; the last one ends the output."""
    script = [TokenDelta(token_ids=tuple(text.encode())) for text in texts]
    if finish is not None:
        last = script.pop()
        script.append(TokenDelta(token_ids=last.token_ids, finish_reason=finish))
    return script


class ScriptedLoop:
    """Answers every request with one script; `running` holds the ids that were not closed."""

    def __init__(self, script: Script = (), *, refusal: Exception | None = None) -> None:
        self.script = script
        self.refusal = refusal
        self.is_serving = True
        self.requests: list[Request] = []
        self.running: dict[str, ScriptedTokens] = {}
        self.submitted = asyncio.Event()

    def submit(
        self,
        request: Request,
        times: RequestTimes | None = None,
        matcher: TokenMatcher | None = None,
    ) -> "ScriptedTokens":
        """Remember the request and begin the script."""
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.submitted.set()
        self.running[request.request_id] = ScriptedTokens(self, request.request_id)
        return self.running[request.request_id]

    def abort(self, request_id: str) -> None:
        """End a request with the finish reason ABORT; one that is not running is ignored."""
        if request_id in self.running:
            aborted = TokenDelta(finish_reason=FinishReason.ABORT)
            self.running[request_id].events.put_nowait(aborted)

    async def reset_prefix_cache(self, seconds: float) -> bool:
        """Say whether no request runs, without waiting for that."""
        return not self.running

    async def all_closed(self) -> None:
        """Wait until no request runs."""
        while self.running:
            await next(iter(self.running.values())).closed.wait()


class ScriptedTokens:
    """The script of one request, then whatever is put into `events`."""

    def __init__(self, loop: ScriptedLoop, request_id: str) -> None:
        self._loop = loop
        self._request_id = request_id
        self.closed = asyncio.Event()
        self.events: asyncio.Queue[TokenDelta | Exception] = asyncio.Queue()
        for event in loop.script:
            self.events.put_nowait(event)

    def __aiter__(self) -> "ScriptedTokens":
        return self

    async def __anext__(self) -> TokenDelta:
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def aclose(self) -> None:
        """Leave the loop."""
        self._loop.running.pop(self._request_id, None)
        self.closed.set()
