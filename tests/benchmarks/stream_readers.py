"""Many streams of one coordinator read in a process of its own: when which token arrived.

`python -m tests.benchmarks.stream_readers PROTOCOL HOST:PORT STREAMS TOKENS FILE` writes float64
arrays: `arrived`, seconds of the monotonic clock of every token, and `stamps`, the tokens; `first`
and `last`, when each stream's first and last token arrived.
"""

import asyncio
import re
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc
import numpy as np
from stepwire.v1 import inference_pb2 as pb
from stepwire.v1 import inference_pb2_grpc

from tests.fakes.stamping_worker import DIGITS

TEXT = re.compile(rb'"text":"(\d+)"')
END_OF_EVENT = b"\n\n"
PROMPT = (1, 2, 3, 4)
STREAMS_PER_CHANNEL = 100
"""What most servers allow on one HTTP/2 connection."""


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Every token that all streams of a process have read."""

    arrived: "array[float]" = field(default_factory=lambda: array("d"))
    stamps: "array[float]" = field(default_factory=lambda: array("d"))
    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """Write all as arrays."""
        np.savez(file, **{name: np.array(getattr(self, name)) for name in self.__slots__})

    @classmethod
    def read(cls, file: Path) -> dict[str, "np.ndarray"]:
        """Read what was written."""
        with np.load(file) as arrays:
            return {name: arrays[name] for name in cls.__slots__}


class SseReader(asyncio.Protocol):
    """One answer of /v1/completions, read without an HTTP library: the reader must cost little."""

    def __init__(self, arrivals: Arrivals, *, request: bytes) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals = arrivals
        self._request = request
        self._unread = b""
        self._has_first = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the tokens of whole events."""
        whole, end, self._unread = (self._unread + data).rpartition(END_OF_EVENT)
        if not end:
            return
        now = time.monotonic()
        for text in TEXT.findall(whole):
            for begin in range(0, len(text), DIGITS):
                self._arrivals.arrived.append(now)
                self._arrivals.stamps.append(int(text[begin : begin + DIGITS]))
        if not self._has_first and TEXT.search(whole):
            self._has_first = True
            self._arrivals.first.append(now)
        if b"[DONE]" in whole:
            self._arrivals.last.append(now)
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail when the answer is not whole."""
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError(f"cut short: {self._unread!r}"))


async def read_sse(address: str, *, num_streams: int, num_tokens: int) -> Arrivals:
    """Read completions over HTTP, a connection each."""
    arrivals = Arrivals()
    body = (
        f'{{"model":"","prompt":{list(PROMPT)},"max_tokens":{num_tokens},'
        '"stream":true,"ignore_eos":true,"temperature":0}'
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(
            lambda: SseReader(arrivals, request=head + body), host, int(port)
        )
        for _ in range(num_streams)
    ]
    await asyncio.gather(*(reader.ended for _, reader in opened))
    for transport, _ in opened:
        transport.close()
    return arrivals


async def read_grpc(address: str, *, num_streams: int, num_tokens: int) -> Arrivals:
    """Read Generate calls, STREAMS_PER_CHANNEL on a connection."""
    arrivals = Arrivals()
    num_channels = -(-num_streams // STREAMS_PER_CHANNEL)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(num_channels)]
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT), max_tokens=num_tokens, ignore_eos=True, temperature=0
    )

    async def read(channel: grpc.aio.Channel) -> None:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request)
        now = None
        async for response in call:
            is_first, now = now is None, time.monotonic()
            for token in response.token_ids:
                arrivals.arrived.append(now)
                arrivals.stamps.append(token)
            if is_first:
                arrivals.first.append(now)
        assert now is not None, "an answer has tokens"
        arrivals.last.append(now)

    await asyncio.gather(*(read(channels[i % num_channels]) for i in range(num_streams)))
    for channel in channels:
        await channel.close()
    return arrivals


READERS = {"sse": read_sse, "grpc": read_grpc}


def main(protocol: str, address: str, num_streams: str, num_tokens: str, file: str) -> None:
    """Read all streams to their ends and write what arrived."""
    read = READERS[protocol]
    arrivals = asyncio.run(read(address, num_streams=int(num_streams), num_tokens=int(num_tokens)))
    arrivals.write(Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
