"""Finds the model's folder, waiting for one that another process is about to fill.

An import makes a folder appear whole or not at all, so what is there can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from common.errors import ModelMissing

POLL_SECONDS = 0.5

Folder = TypeVar("Folder")


async def await_model(
    find: Callable[[], Awaitable[Folder]], *, patience: float, on_missing: Callable[[str], None]
) -> Folder:
    """What `find` returns, called until it finds the model, for `patience` seconds.

    `on_missing` is told why there is still none. Raises ModelMissing when the time is over, and at
    once whatever else `find` raises.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            return await find()
        except ModelMissing as error:
            if loop.time() >= deadline:
                raise
            on_missing(str(error))
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, deadline - loop.time())))
