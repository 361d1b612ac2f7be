"""A worker of a real group is killed: who waits hears it, and the group serves again without help."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from common.errors import Unavailable
from coordinator.client import Client
from coordinator.executors.progress import ReplicaPhase
from tests.fakes.coordinator_process import (
    PROMPT,
    TINY_LIMITS,
    CoordinatorProcess,
    coordinator_process,
    greedy_tokens,
    wait_for,
)
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess, worker_processes

TOLD_WITHIN_S = 2.0
SERVES_WITHIN_S = 20.0
ENDS_WITHIN_S = 10.0


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
def remote(workers: list[WorkerProcess], model: Path) -> Iterator[CoordinatorProcess]:
    """A coordinator of the two workers."""
    addresses = ",".join(worker.address for worker in workers)
    with coordinator_process(
        "coordinator", f"--workers={addresses}", f"--model={model}", *TINY_LIMITS
    ) as started:
        yield started


@pytest.fixture
def local(model: Path) -> Iterator[CoordinatorProcess]:
    """A coordinator that starts two workers itself."""
    with coordinator_process(
        "up", "--pp=2", "--device=cpu", "--threads=1", f"--model={model}", *TINY_LIMITS
    ) as started:
        yield started
        started.send_signal(signal.SIGTERM)
        assert started.wait() == (0, [])


def error_of_open_request(client: Client, kill: Callable[[], None]) -> tuple[str, float]:
    """Kill in the middle of an answer; the error that ended it and the seconds that took."""
    deltas = client.generate(PROMPT, max_tokens=2000, temperature=0.0, ignore_eos=True)
    next(deltas)
    killed_at = time.monotonic()
    kill()
    with pytest.raises(Unavailable) as caught:
        for _ in deltas:
            pass
    return str(caught.value), time.monotonic() - killed_at


def test_remote_worker_is_restarted_by_hand(remote, workers):
    """Status and errors name the rank in time; the group serves again; the other rank reads nothing."""
    before = greedy_tokens(remote.client, num_tokens=8)
    survivor, victim = workers
    error, seconds = error_of_open_request(remote.client, victim.kill)
    assert seconds < TOLD_WITHIN_S
    assert error.startswith(f"stage 1 ({victim.address}) lost: ")
    waiting = wait_for(
        remote.client,
        lambda status: status.detail == "waiting for stage 1 (have 1 of 2)",
        seconds=TOLD_WITHIN_S - seconds,
    )
    assert waiting.phase is ReplicaPhase.WAITING
    assert [bool(worker.cause) for worker in waiting.workers] == [False, True]
    assert waiting.lost_generations[0].cause == error
    assert httpx.get(f"{remote.http_url}/health").status_code == 503
    with pytest.raises(Unavailable, match=r"stage 1 .* is being rebuilt"):
        greedy_tokens(remote.client, num_tokens=1)

    restarted_at = time.monotonic()
    successor = WorkerProcess(f"--listen={victim.address}")
    try:
        successor.wait_until_ready()
        status = wait_for(remote.client, lambda status: status.is_serving, seconds=SERVES_WITHIN_S)
        assert time.monotonic() - restarted_at < SERVES_WITHIN_S
        assert [worker.num_loads for worker in status.workers] == [1, 1]
        assert [worker.incarnation for worker in status.workers] == [
            survivor.incarnation,
            successor.incarnation,
        ]
        assert (status.epoch, status.phase) == (1, ReplicaPhase.SERVING)
        assert greedy_tokens(remote.client, num_tokens=8) == before
        assert httpx.get(f"{remote.http_url}/health").status_code == 200
        remote.send_signal(signal.SIGTERM)
        assert remote.wait() == (0, [])
    finally:
        successor.kill()


def test_a_group_that_waits_for_a_worker_can_be_ended(remote, workers):
    """SIGTERM while stage 0 is missing: the coordinator lets the survivor go, and both end with 0."""
    workers[0].kill()
    wait_for(
        remote.client,
        lambda status: status.detail == "waiting for stage 0 (have 1 of 2)",
        seconds=TOLD_WITHIN_S,
    )
    asked_at = time.monotonic()
    for process in (workers[1], remote):
        process.send_signal(signal.SIGTERM)
    assert remote.wait() == (0, [])
    assert workers[1].wait()[0] == 0
    assert time.monotonic() - asked_at < ENDS_WITHIN_S


def test_local_worker_is_restarted_by_the_coordinator(local):
    """Nobody touches anything: a new child takes the place of the killed one."""
    before = greedy_tokens(local.client, num_tokens=8)
    children = psutil.Process(local.process.pid).children()
    victim = child_listening_on(children, local.client.status().workers[0].address)
    killed_at = time.monotonic()
    error, seconds = error_of_open_request(local.client, victim.kill)
    assert seconds < TOLD_WITHIN_S
    assert error.startswith("stage 0 (127.0.0.1:")
    assert error.endswith("lost: killed by SIGKILL")
    status = wait_for(local.client, lambda status: status.is_serving, seconds=SERVES_WITHIN_S)
    assert time.monotonic() - killed_at < SERVES_WITHIN_S
    assert [worker.num_loads for worker in status.workers] == [1, 1]
    assert status.generation > 1
    assert greedy_tokens(local.client, num_tokens=8) == before


def child_listening_on(children: list[psutil.Process], address: str) -> psutil.Process:
    """The child process whose port this is."""
    port = int(address.rpartition(":")[2])
    (found,) = [
        child
        for child in children
        if any(connection.laddr.port == port for connection in listening(child))
    ]
    return found


def listening(process: psutil.Process) -> list:
    """The sockets on which a process waits for connections."""
    return [
        connection
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
