"""Every test runs in a clean environment and fails when it leaves something running behind it.

Looked for after each test: asyncio tasks, threads, open ZMQ contexts and child processes that were
not there before it. Fixtures of a wider scope start before a test and may outlive it.
"""

import asyncio
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from zmq.utils.garbage import gc as zmq_garbage

from common.config_loader import PREFIX, cache_folder, environment

GPU_DRIVER = Path("/dev/nvidiactl")

if not GPU_DRIVER.exists():
    # Without a GPU Triton's kernels are interpreted; the library asks when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")  # noqa: TID251 - no setting of ours

LIBRARY_THREADS = re.compile(r"asyncio_\d+|tqdm_monitor|.*\((_?poll\w*|_serve|channel_spin)\)")
"""Names of threads that gRPC, tqdm and asyncio keep for the life of the process."""

GRACE_S = 3.0
"""Seconds that tasks, threads and child processes which were told to end may take."""

OPEN_CONTEXTS: "weakref.WeakSet[zmq.Context]" = weakref.WeakSet()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller say how long the tests marked `soak` run."""
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=1200.0,
        help="seconds of traffic in tests marked soak (default: 1200)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note every ZMQ context that is made; the library itself keeps no list."""
    # The library's thread for zero-copy sends lives as long as the process; here from the start.
    zmq_garbage.start()
    create = zmq.Context.__init__

    def create_noted(self: zmq.Context, *args, **kwargs) -> None:
        create(self, *args, **kwargs)
        OPEN_CONTEXTS.add(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(zmq.Context, "__init__", create_noted)
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watch the tasks of tests that are coroutines; the others have no event loop."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "no_leaked_tasks")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in [name for name in environment() if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo what a test configures: a handler would outlive the stream it writes to."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Fail a test that leaves asyncio tasks running."""
    yield
    others = asyncio.all_tasks() - {asyncio.current_task()}
    leaked = (await asyncio.wait(others, timeout=GRACE_S))[1] if others else set()
    assert not leaked, f"the test left tasks running: {[task.get_name() for task in leaked]}"


@pytest.fixture(autouse=True)
def no_leaked_resources() -> Iterator[None]:
    """Fail a test that leaves threads, open ZMQ contexts or child processes."""
    threads, contexts = set(threading.enumerate()), set(OPEN_CONTEXTS)
    children = set(psutil.Process().children())
    yield
    assert not (leaked := _leaked_threads(threads)), f"the test left threads: {leaked}"
    open_contexts = [context for context in OPEN_CONTEXTS if not context.closed]
    leaked_contexts = [context for context in open_contexts if context not in contexts]
    assert not leaked_contexts, f"the test left ZMQ contexts open: {leaked_contexts}"
    assert not (leaked := _leaked_children(children)), f"the test left processes: {leaked}"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16, imported when it is not in the cache yet."""
    command = [sys.executable, "-m", "worker_service", "model", "import", "smollm2-135m"]
    imported = subprocess.run(
        [*command, "--cache", str(cache_folder())], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(imported.stdout.splitlines()[-1])


def _leaked_threads(before: set[threading.Thread]) -> list[str]:
    leaked: list[str] = []
    for thread in set(threading.enumerate()) - before:
        if not LIBRARY_THREADS.fullmatch(thread.name):
            thread.join(timeout=GRACE_S)
            if thread.is_alive():
                leaked.append(thread.name)
    return leaked


def _leaked_children(before: set[psutil.Process]) -> list[str]:
    """Names of new child processes that still run; they are killed, so that one test fails alone."""
    new = [child for child in psutil.Process().children() if child not in before]
    _, leaked = psutil.wait_procs(new, timeout=GRACE_S)
    for child in leaked:
        child.kill()
    return [str(child) for child in leaked]
