"""Lets go of workers of a group that is no more: those that survived still count on the coordinator."""

import asyncio
import logging
from collections.abc import Sequence

from common.errors import ServiceError
from common.worker_api import Authority, WorkerApi
from coordinator.executors.startup import GROUP_STATES

PATIENCE_SECONDS = 2.0

logger = logging.getLogger(__name__)


async def release_survivors(workers: Sequence[WorkerApi], authority: Authority) -> None:
    """End whatever generation of this coordinator each worker is in; one that is silent is left."""
    await asyncio.gather(*(_release(worker, authority) for worker in workers))


async def _release(worker: WorkerApi, authority: Authority) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            info = await worker.describe()
            if info.state in GROUP_STATES and info.epoch == authority.epoch:
                await worker.end_generation(authority, info.generation)
    except (ServiceError, TimeoutError) as error:
        logger.info("%s was not released: %s", worker.address, str(error) or "it is silent")
