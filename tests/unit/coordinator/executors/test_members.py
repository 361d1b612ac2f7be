"""Control calls on all ranks: replies in order, errors by rank, nothing left running."""

import asyncio
import logging

import pytest

from common.errors import InvalidRequest, ModelError, WorkerLost
from common.worker_api import Rank, WorkerInfo
from coordinator.executors.members import Member, describe, on_every_rank
from tests.fakes.scripted_pipeline import scripted_pipeline
from tests.fakes.scripted_worker import ScriptedWorker


def members_of(workers: list[ScriptedWorker]) -> list[Member]:
    """The workers in stage order."""
    return [Member(rank=Rank(stage=stage), worker=worker) for stage, worker in enumerate(workers)]


class SlowToAnswer(ScriptedWorker):
    """A worker that describes itself only when it is let."""

    def __init__(self) -> None:
        super().__init__(address="host:7001")
        self.is_up = asyncio.Event()

    async def describe(self) -> WorkerInfo:
        """Wait first."""
        await self.is_up.wait()
        return await super().describe()


async def test_replies_come_in_rank_order():
    """A later rank that answers first keeps its place."""
    second_answered = asyncio.Event()

    async def call(member: Member) -> int:
        if member.rank.stage == 0:
            await second_answered.wait()
        else:
            second_answered.set()
        return member.rank.stage

    assert await on_every_rank(members_of(scripted_pipeline(2)), call) == [0, 1]


async def test_first_error_ends_the_calls_on_the_other_ranks():
    """The error keeps its class, names its rank, and no call goes on behind the caller's back."""
    was_cancelled: list[int] = []

    async def call(member: Member) -> None:
        if member.rank.stage == 1:
            raise ModelError("no such tensor")
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.append(member.rank.stage)

    with pytest.raises(ModelError, match=r"^stage 1 \(scripted:1\): no such tensor$"):
        await on_every_rank(members_of(scripted_pipeline(2)), call)
    assert was_cancelled == [0]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WorkerLost("connection closed"), "stage 0 (scripted:0) lost: connection closed"),
        (InvalidRequest("end_layer must be after first_layer"), "stage 0 (scripted:0): end_layer"),
    ],
)
def test_blame_names_the_rank_and_keeps_the_class(error, message):
    """A loss reads as one; any other error is the worker's own words."""
    (member,) = members_of([ScriptedWorker()])
    blamed = member.blame(error)
    assert type(blamed) is type(error)
    assert str(blamed).startswith(message)


def test_worker_without_an_address_is_called_by_its_rank():
    """A worker in this process has no HOST:PORT."""
    member = Member(rank=Rank(stage=2), worker=ScriptedWorker(address=""))
    assert str(member.lost("its thread died")) == "stage 2 lost: its thread died"


class OnRecord(logging.Handler):
    """Sets an event with the first log line."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        """Called on the event loop, where the line is logged."""
        self._event.set()


async def test_log_says_whom_the_coordinator_waits_for(caplog):
    """A worker that is not up yet is named until it answers; here the line itself brings it up."""
    worker = SlowToAnswer()
    (member,) = members_of([worker])
    handler = OnRecord(worker.is_up)
    members_logger = logging.getLogger("coordinator.executors.members")
    members_logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            assert (await describe(member, log_every=0.001)).state == "CREATED"
    finally:
        members_logger.removeHandler(handler)
    assert caplog.messages == ["waiting for stage 0 at host:7001, no worker answers there yet"]
