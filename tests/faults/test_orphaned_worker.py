"""Worker processes that outlive the process that started them: gone soon, or claimed by another."""

import asyncio
import time

from common.worker_api import Authority
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_process import WorkerProcess, worker_processes
from worker_service.ending import ORPHAN_LIMIT_SECONDS

PARENT = Authority(coordinator_id="the parent", epoch=1)
NEWER = Authority(coordinator_id="a newer one", epoch=2)


async def init_device(worker: WorkerProcess, authority: Authority) -> None:
    """Claim a worker by its first mutating call."""
    client = UnaryWorker(worker.address)
    await client.init_device(authority)
    await client.close()


async def test_only_an_orphan_that_is_claimed_stays() -> None:
    """Nobody needs the others: they exit 0 within 10 s, whether their parent had claimed them or not."""
    with worker_processes(3, "--exit-with-stdin") as (claimed, unclaimed, unused):
        await init_device(unclaimed, PARENT)
        closed_at = time.monotonic()
        for worker in (claimed, unclaimed, unused):
            worker.close_stdin()
        await init_device(claimed, NEWER)
        for worker in (unclaimed, unused):
            assert await asyncio.to_thread(worker.wait) == (0, "")
        assert time.monotonic() - closed_at < ORPHAN_LIMIT_SECONDS
        await asyncio.sleep(closed_at + ORPHAN_LIMIT_SECONDS + 1 - time.monotonic())
        client = UnaryWorker(claimed.address)
        assert (await client.describe()).epoch == NEWER.epoch
        await client.close()
