"""What those who watch the console are told, and when."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from common.errors import Overloaded
from coordinator.api.console_feed import ConsoleFeed
from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.cluster_states import REBUILDING
from tests.fakes.manual_clock import ManualClock


class Watched:
    """A feed of a state that a test changes, sampled when the test says so."""

    def __init__(self, status: ClusterStatus = REBUILDING) -> None:
        self.clock = ManualClock()
        self.status = status
        self.feed = ConsoleFeed(
            lambda: self.status, version="1.2.3", clock=self.clock, max_watchers=2
        )

    def sample(self, **changes: Any) -> None:
        """Change the state, let a second pass and sample."""
        self.status = replace(self.status, **changes)
        self.clock.advance(1.0)
        self.feed.take_sample()


def read(frame: bytes) -> dict[str, Any]:
    """The object in an event."""
    assert frame.endswith(b"\n\n")
    return json.loads(frame.removeprefix(b"data: "))


async def next_while(frames: AsyncGenerator[bytes], watched: Watched, **changes: Any) -> dict:
    """What a watcher who waits is told of a change."""
    waiting = asyncio.create_task(anext(frames), name="watcher")
    await asyncio.sleep(0)
    watched.sample(**changes)
    return read(await waiting)


async def test_a_watcher_gets_the_state_with_its_history_and_then_what_is_new():
    """The first event is of this moment, with every sample so far; a later one holds only its own."""
    watched = Watched()
    watched.sample()
    watched.sample(num_generated_tokens=420)
    watched.status = replace(watched.status, step=413)
    async with aclosing(watched.feed.frames()) as frames:
        first = read(await anext(frames))
        assert [sample["generated_rate"] for sample in first["history"]] == [0, 100]
        assert (first["version"], first["status"]["step"]) == ("1.2.3", 413)
        assert first["status"]["phase"] == "WAITING"
        assert first["status"]["workers"][1]["cause"] == "killed by SIGKILL"
        assert first["prefix_hit_ratio"] == 0.25
        second = await next_while(frames, watched, is_serving=True)
        assert second["status"]["is_serving"] is True
        assert "history" not in second
        assert second["load"]["at"] == 3.0


async def test_a_slow_watcher_gets_the_newest_state_and_no_backlog():
    """States that came while an event was being sent are not kept for the one who was slow."""
    watched = Watched()
    watched.sample()
    async with aclosing(watched.feed.frames()) as frames:
        await anext(frames)
        for num_running in range(5):
            watched.sample(num_running=num_running)
        told = await next_while(frames, watched, num_running=9)
        assert told["status"]["num_running"] == 9


async def test_a_watcher_of_a_feed_without_a_sample_waits_for_it():
    """Nothing is told before there is something to tell."""
    watched = Watched()
    async with aclosing(watched.feed.frames()) as frames:
        assert (await next_while(frames, watched))["load"]["at"] == 1.0


async def test_closing_ends_those_who_wait():
    """A watcher that waits, and one that comes later, reach the end."""
    watched = Watched()
    waiting = asyncio.create_task(anext(watched.feed.frames(), None), name="watcher")
    await asyncio.sleep(0)
    watched.feed.close()
    assert await waiting is None
    assert await anext(watched.feed.frames(), None) is None


async def test_the_number_of_watchers_is_bounded():
    """One too many is refused by name of the limit, until another leaves."""
    feed = Watched().feed
    feed.join()
    feed.join()
    with pytest.raises(Overloaded, match="2 consoles are open"):
        feed.join()
    await feed.leave()
    feed.join()
    assert feed.num_watchers == 2
