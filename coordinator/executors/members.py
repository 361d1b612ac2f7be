"""The ranks of a replica and a control call on all of them, whose errors name the rank."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from common.errors import ServiceError, WorkerLost
from common.worker_api import Rank, WorkerApi, WorkerInfo
from coordinator.executors.progress import ProgressListener, ignore_progress, waiting_for

WAIT_LOG_SECONDS = 2.0

Reply = TypeVar("Reply")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker and its place."""

    rank: Rank
    worker: WorkerApi

    def __str__(self) -> str:
        address = self.worker.address
        return f"{self.rank} ({address})" if address else str(self.rank)

    def blame(self, error: ServiceError) -> ServiceError:
        """The same error with this rank in its message."""
        if isinstance(error, WorkerLost):
            return self.lost(str(error))
        return type(error)(f"{self}: {error}")

    def lost(self, cause: str) -> WorkerLost:
        """The error that says this rank is gone, and why."""
        return WorkerLost(f"{self} lost: {cause}")


async def on_every_rank(
    members: Sequence[Member], call: Callable[[Member], Awaitable[Reply]]
) -> list[Reply]:
    """Call all ranks at once; replies in rank order. The first error ends the other calls."""
    tasks = [
        asyncio.create_task(_blaming(member, call), name=f"control call {member.rank}")
        for member in members
    ]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        # A worker must not see the next call, or its own close, before these have ended.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _blaming(member: Member, call: Callable[[Member], Awaitable[Reply]]) -> Reply:
    try:
        return await call(member)
    except ServiceError as error:
        raise member.blame(error) from error


async def describe_all(
    members: Sequence[Member],
    report: ProgressListener = ignore_progress,
    *,
    log_every: float = WAIT_LOG_SECONDS,
) -> list[WorkerInfo]:
    """Ask every worker what it is; replies in rank order, and a word on whom the group waits for."""
    missing = {member.rank for member in members}

    async def ask(member: Member) -> WorkerInfo:
        info = await describe(member, log_every=log_every)
        missing.discard(member.rank)
        if missing:
            report(waiting_for(missing, num_ranks=len(members)))
        return info

    report(waiting_for(missing, num_ranks=len(members)))
    return await on_every_rank(members, ask)


async def describe(member: Member, *, log_every: float = WAIT_LOG_SECONDS) -> WorkerInfo:
    """Ask a worker what it is; every log_every seconds without an answer the log says so."""
    reply = asyncio.ensure_future(member.worker.describe())
    try:
        while not (await asyncio.wait({reply}, timeout=log_every))[0]:
            logger.info(
                "waiting for %s at %s, no worker answers there yet",
                member.rank,
                member.worker.address,
            )
        return reply.result()
    finally:
        reply.cancel()


async def close_all(members: Sequence[Member]) -> None:
    """Let go of every worker; one that fails to close is logged."""
    for outcome in await asyncio.gather(
        *(member.worker.close() for member in members), return_exceptions=True
    ):
        if isinstance(outcome, Exception):
            logger.warning("a worker did not close cleanly: %s", outcome)
