"""Lets SIGTERM end a process that has not taken its signals yet.

The first process of a container has no default action for a signal: without a handler it would go on
starting, or importing a model, until it is killed.
"""

import signal
from types import FrameType
from typing import NoReturn

TOLD_TO_END = 128 + signal.SIGTERM
"""What a shell makes of a process that died of SIGTERM."""


def end_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that `finally` clauses run; a service replaces this later."""
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def hold_sigterm() -> None:
    """Let SIGTERM wait until the program that takes this process over calls `end_on_sigterm`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TOLD_TO_END)
