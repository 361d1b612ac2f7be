"""A fixed load on an OpenAI server over HTTP: streamed completions, timed where the client reads.

Written on asyncio streams alone: on a machine with few cores a heavier client would be measured too.
"""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.benchmarks.load import VOCAB_SIZE, Load

MODEL_NAME = "benchmarked"
"""What every server is told to call the model."""

_EVENT = b"data: "
_LAST_EVENT = b"data: [DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """When a request was sent and when each of its chunks was read, in seconds of one clock."""

    sent: float
    chunks: tuple[float, ...]
    num_tokens: int

    @property
    def first_token_seconds(self) -> float:
        """Time to the first chunk; a server that holds back tokens without text is charged for it."""
        return self.chunks[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Time between one chunk and the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.chunks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How a server did on one load."""

    tokens_per_second: float
    first_token_ms: float
    inter_token_ms: float


async def run_load(url: str, load: Load, *, seed: int) -> Answered:
    """Send the load once; raises when a request is refused or answered with too few tokens."""
    seats = asyncio.Semaphore(load.concurrency)

    async def one(prompt: Sequence[int]) -> Reading:
        async with seats:
            return await _read_completion(url, prompt, num_tokens=load.output_len)

    prompts = load.prompts(vocab_size=VOCAB_SIZE, seed=seed)
    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(prompt)) for prompt in prompts]
    seconds = time.monotonic() - started
    readings = [task.result() for task in running]
    return Answered(
        tokens_per_second=sum(reading.num_tokens for reading in readings) / seconds,
        first_token_ms=statistics.median(r.first_token_seconds for r in readings) * 1e3,
        inter_token_ms=statistics.median(gap for r in readings for gap in r.gaps) * 1e3,
    )


async def _read_completion(url: str, prompt: Sequence[int], *, num_tokens: int) -> Reading:
    address = urlsplit(url)
    body = {
        "model": MODEL_NAME,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    # In HTTP/1.0 a body has no frames of its own, so every line that arrives is one of the stream.
    head = (
        f"POST /v1/completions HTTP/1.0\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        sent = time.monotonic()
        writer.write(head.encode() + payload)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{url} answered {status!r}: {await reader.read()!r}")
        events: list[tuple[float, bytes]] = []
        while (line := await reader.readline()).rstrip() != _LAST_EVENT:
            if not line:
                raise RuntimeError(f"{url} ended a stream early, after {events[-1:]}")
            if line.startswith(_EVENT):
                events.append((time.monotonic(), line))
    finally:
        writer.close()
    usage = json.loads(events[-1][1].removeprefix(_EVENT))["usage"]
    if usage["prompt_tokens"] != len(prompt) or usage["completion_tokens"] != num_tokens:
        raise RuntimeError(f"{url} was not given the load that was meant: {usage}")
    # The last event holds the counts alone.
    return Reading(
        sent=sent, chunks=tuple(at for at, _ in events[:-1]), num_tokens=usage["completion_tokens"]
    )
