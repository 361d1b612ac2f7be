"""A connection broke: is the worker behind it still the one that it was?

A broken connection is not a broken worker. It is looked for during the reconnect window, at once
given up when its port refuses, and is the same only with the same incarnation in the same generation.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
from grpc import StatusCode

from common.errors import Fenced, ServiceError, Unavailable, WorkerLost
from common.rpc.status import ERROR_CLASS_KEY
from common.worker_api import WorkerInfo

RECONNECT_WINDOW = 1.0
"""Seconds a worker may be out of reach before it counts as lost."""

RETRY_PAUSE = 0.02
"""Seconds before each attempt, so that a connection which breaks at once is not a busy loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a worker was when it was last known: process, and the generation it serves, 0 for none."""

    incarnation: str
    epoch: int = 0
    generation: int = 0


def is_connection_error(error: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself ended a call; what a worker says carries the name of its error.

    A call that ends while a message is written to it may lose its status and read INTERNAL.
    """
    is_named = any(key == ERROR_CLASS_KEY for key, _ in error.trailing_metadata() or ())
    return error.code() in (StatusCode.UNAVAILABLE, StatusCode.INTERNAL) and not is_named


async def find_again(
    address: str, describe: Callable[[], Awaitable[WorkerInfo]], *, known: Membership
) -> ServiceError | None:
    """None when the worker answers and is what it was, else the error that says what happened.

    describe makes one attempt and raises Unavailable when the worker cannot be reached.
    """
    try:
        async with asyncio.timeout(RECONNECT_WINDOW):
            return compare(await _until_reached(address, describe), known=known)
    except TimeoutError:
        return WorkerLost(f"it is out of reach for {RECONNECT_WINDOW:g} s")
    except ServiceError as error:
        return error


def compare(info: WorkerInfo, *, known: Membership) -> ServiceError | None:
    """None when a worker still is what it was; Fenced when a newer coordinator commands it."""
    if info.incarnation != known.incarnation:
        return WorkerLost("it was restarted")
    if info.epoch > known.epoch > 0:
        return Fenced(f"a coordinator with epoch {info.epoch}, not {known.epoch}, commands it")
    if info.generation != known.generation and known.generation > 0:
        return WorkerLost(f"it left generation {known.generation}")
    return None


async def _until_reached(address: str, describe: Callable[[], Awaitable[WorkerInfo]]) -> WorkerInfo:
    while True:
        await asyncio.sleep(RETRY_PAUSE)
        try:
            return await describe()
        except Unavailable as error:
            # gRPC tells a refused connection from a closed one by words alone; the socket knows.
            if await asyncio.to_thread(_is_refused, address):
                raise WorkerLost("nobody listens at its port") from error


def _is_refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with contextlib.closing(
            socket.create_connection((host.strip("[]"), int(port)), timeout=RECONNECT_WINDOW)
        ):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
