"""Everything is told to end at once, as `docker compose stop` does, and nothing that runs is lost."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import Unavailable
from coordinator.client import Client
from coordinator.executors.progress import ReplicaPhase
from tests.fakes.coordinator_process import (
    TINY_LIMITS,
    coordinator_process,
    greedy_tokens,
    wait_for,
)
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import worker_processes

NUM_STREAMS = 8
NUM_TOKENS = 400
STARTED_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=2)


def stream(client: Client, index: int, have_begun: threading.Barrier) -> tuple[int, ...]:
    """One answer, which meets the others after its first token."""
    deltas = client.generate((index,), max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    token_ids = next(deltas).token_ids
    have_begun.wait(STARTED_WITHIN_S)
    return token_ids + tuple(token for delta in deltas for token in delta.token_ids)


def test_running_streams_end_and_new_requests_are_refused(model):
    """Coordinator and workers get SIGTERM in one instant: 8 whole answers, then three exits with 0."""
    have_begun = threading.Barrier(NUM_STREAMS + 1)
    with worker_processes(2) as workers, ThreadPoolExecutor(NUM_STREAMS) as pool:
        addresses = ",".join(worker.address for worker in workers)
        with coordinator_process(
            "coordinator", f"--workers={addresses}", f"--model={model}", *TINY_LIMITS
        ) as coordinator:
            answers = [
                pool.submit(stream, coordinator.client, index, have_begun)
                for index in range(NUM_STREAMS)
            ]
            have_begun.wait(STARTED_WITHIN_S)
            for process in (*workers, coordinator):
                process.send_signal(signal.SIGTERM)
            wait_for(
                coordinator.client,
                lambda status: status.phase is ReplicaPhase.DRAINING,
                seconds=STARTED_WITHIN_S,
            )
            with pytest.raises(Unavailable, match="shutting down"):
                greedy_tokens(coordinator.client, num_tokens=1)
            assert [len(answer.result()) for answer in answers] == [NUM_TOKENS] * NUM_STREAMS
            assert coordinator.wait() == (0, [])
        assert [worker.wait()[0] for worker in workers] == [0, 0]
