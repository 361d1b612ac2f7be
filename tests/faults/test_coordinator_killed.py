"""Remote workers outlive their coordinator; a successor takes them over, and one that wakes up later goes."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import Unavailable
from tests.fakes.coordinator_process import (
    PROMPT,
    TINY_LIMITS,
    CoordinatorProcess,
    coordinator_process,
    greedy_tokens,
)
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess, worker_processes

SERVES_WITHIN_S = 6.0
FENCED_EXIT_CODE = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=2)


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Two remote workers."""
    with worker_processes(2) as started:
        yield started


@pytest.fixture
def arguments(workers: list[WorkerProcess], model: Path) -> tuple[str, ...]:
    """The command line of every coordinator of the two workers."""
    addresses = ",".join(worker.address for worker in workers)
    return "coordinator", f"--workers={addresses}", f"--model={model}", *TINY_LIMITS


@pytest.fixture
def first(arguments: tuple[str, ...]) -> Iterator[CoordinatorProcess]:
    """The coordinator that loads the workers."""
    with coordinator_process(*arguments) as started:
        yield started


def check_takeover(
    arguments: tuple[str, ...], workers: list[WorkerProcess], expected: tuple[int, ...]
) -> None:
    """A second coordinator serves in time, with a higher epoch, on what the workers hold."""
    started_at = time.monotonic()
    with coordinator_process(*arguments) as second:
        seconds = time.monotonic() - started_at
        status = second.client.status()
        assert greedy_tokens(second.client, num_tokens=len(expected)) == expected
        assert (status.epoch, status.generation) == (2, 1)
        assert [worker.num_loads for worker in status.workers] == [1, 1]
        assert [worker.incarnation for worker in status.workers] == [
            worker.incarnation for worker in workers
        ]
        assert seconds < SERVES_WITHIN_S, f"it took {seconds:.1f} s"
        second.send_signal(signal.SIGTERM)
        assert second.wait() == (0, [])


def test_workers_of_a_killed_coordinator_are_claimed_by_the_next(first, arguments, workers):
    """In the middle of an answer the coordinator dies; the next one loads nothing."""
    expected = greedy_tokens(first.client, num_tokens=8)
    deltas = first.client.generate(PROMPT, max_tokens=2000, temperature=0.0, ignore_eos=True)
    next(deltas)
    first.send_signal(signal.SIGKILL)
    with pytest.raises(Unavailable):
        list(deltas)
    check_takeover(arguments, workers, expected)


def test_coordinator_that_wakes_up_too_late_is_refused(first, arguments, workers):
    """Stopped, replaced, and woken: its workers refuse it, and it ends with one line and code 3."""
    expected = greedy_tokens(first.client, num_tokens=8)
    deltas = first.client.generate(PROMPT, max_tokens=2000, temperature=0.0, ignore_eos=True)
    next(deltas)
    first.send_signal(signal.SIGSTOP)
    with coordinator_process(*arguments) as second:
        first.send_signal(signal.SIGCONT)
        with pytest.raises(Unavailable):
            list(deltas)
        exit_code, lines = first.wait()
        assert exit_code == FENCED_EXIT_CODE
        (line,) = lines
        assert line.startswith("error: stage ")
        assert greedy_tokens(second.client, num_tokens=8) == expected
        status = second.client.status()
        assert (status.epoch, status.generation) == (2, 1)
        assert [worker.num_loads for worker in status.workers] == [1, 1]
