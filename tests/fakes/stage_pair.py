"""Two real worker processes that hold a stage each of one model, and the coordinator of a test."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.fakes.held_worker import HeldWorker, held_workers
from tests.fakes.step_client import StepClient
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_setup import load_request, warm_up


@contextmanager
def stage_pair(folder: Path, holds: Path) -> Iterator[list[HeldWorker]]:
    """Both processes, warm; their forwards can be held by files in `holds`."""
    with held_workers(2, holds) as processes:
        asyncio.run(_load_stages(processes, folder))
        yield processes


async def _load_stages(processes: Sequence[HeldWorker], folder: Path) -> None:
    for stage, process in enumerate(processes):
        worker = UnaryWorker(process.address)
        await warm_up(worker, load_request(str(folder), stage=stage, num_stages=2))
        await worker.close()


@asynccontextmanager
async def newest_client(processes: Sequence[HeldWorker]) -> AsyncIterator[StepClient]:
    """A coordinator of an epoch higher than those before, in its first generation."""
    workers = [UnaryWorker(process.address) for process in processes]
    epoch = 1 + max([(await worker.describe()).epoch for worker in workers])
    client = StepClient(workers, epoch=epoch)
    try:
        await client.begin()
        yield client
    finally:
        client.leave()
        for process in processes:
            process.release()
        for worker in workers:
            await worker.close()
