"""What the console shows, sampled once a second and told to everyone who watches.

A watcher gets the newest state when it can take one, never a backlog, and there is a bound on how
many watch; steps know nothing of this.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from typing import Any

from common.clock import Clock
from common.errors import Overloaded
from coordinator.api.event_stream import event
from coordinator.engine.cluster_status import ClusterStatus, plain_status
from coordinator.engine.load_history import LoadHistory, LoadSample

INTERVAL_SECONDS = 1.0
NUM_REMEMBERED = 300
MAX_WATCHERS = 64


class ConsoleFeed:
    """Samples while `run` does; `join`, read `frames`, `leave`."""

    def __init__(
        self,
        read_status: Callable[[], ClusterStatus],
        *,
        version: str,
        clock: Clock,
        max_watchers: int = MAX_WATCHERS,
    ) -> None:
        """Begin without a sample; version is shown as it is."""
        self._read_status = read_status
        self._version = version
        self._clock = clock
        self._max_watchers = max_watchers
        self._history = LoadHistory(max_samples=NUM_REMEMBERED)
        self._state: dict[str, Any] = {}
        self._frame: bytes | None = None
        self._changed = asyncio.Event()
        self._is_closed = False
        self.num_watchers = 0
        """How many watch now."""

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take_sample()
            await asyncio.sleep(INTERVAL_SECONDS)

    def take_sample(self) -> None:
        """Look at the state now and wake everyone who watches."""
        status = self._read_status()
        sample = self._history.note(status, at=self._clock.unix_time())
        self._state = self._describe(status, sample)
        self._frame = None
        self._wake()

    def join(self) -> None:
        """Count one more watcher; raises Overloaded when there are too many."""
        if self.num_watchers >= self._max_watchers:
            raise Overloaded(f"{self._max_watchers} consoles are open, which is the limit")
        self.num_watchers += 1

    async def leave(self) -> None:
        """Count one less."""
        self.num_watchers -= 1

    async def frames(self) -> AsyncGenerator[bytes]:
        """The state of this moment with the history, then that of each sample, until closed."""
        if samples := self._history.samples:
            state = self._describe(self._read_status(), samples[-1])
            yield event(state | {"history": [asdict(sample) for sample in samples]})
        while not self._is_closed:
            await self._changed.wait()
            if not self._is_closed:
                yield self._newest_frame()

    def close(self) -> None:
        """End the frames of all watchers, so that their connections do not hold up the end."""
        self._is_closed = True
        self._wake()

    def _describe(self, status: ClusterStatus, sample: LoadSample) -> dict[str, Any]:
        return {
            "version": self._version,
            "status": plain_status(status),
            "kv_usage": status.kv_usage,
            "prefix_hit_ratio": status.prefix_hit_ratio,
            "load": asdict(sample),
        }

    def _newest_frame(self) -> bytes:
        """Written once for all, and only when somebody watches."""
        if self._frame is None:
            self._frame = event(self._state)
        return self._frame

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
