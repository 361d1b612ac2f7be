"""The command `stepwire coordinator` or `up` in a process of its own, on free ports, and its end."""

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.config_loader import child_environment
from coordinator.client import Client
from coordinator.engine.cluster_status import ClusterStatus

ROOT = Path(__file__).parents[2]
EXIT_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.02
FREE_PORTS = ("--grpc-port=0", "--http-port=0")
PROMPT = (5, 6, 7, 8)
TINY_LIMITS = (
    "--max-model-len=2048",
    "--kv-cache-bytes=8388608",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=64",
)
"""Small budgets, so that profiling and warming up take no time."""


class CoordinatorProcess:
    """A coordinator started with these arguments; `client` and the addresses are there once it serves."""

    def __init__(self, *arguments: str) -> None:
        # A file: a pipe that nobody reads would fill up and block the coordinator's log.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", *arguments, *FREE_PORTS],
            cwd=ROOT,
            env=child_environment(),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.grpc_address = ""
        self.http_url = ""
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of its gRPC port."""
        assert self._client is not None, "it does not serve yet"
        return self._client

    def wait_until_serving(self) -> "CoordinatorProcess":
        """Read the lines it prints once requests are accepted."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, _, address = line.strip().partition(" ")
            if name == "gRPC":
                self.grpc_address = address
                self._client = Client(address)
            if name == "HTTP":
                self.http_url = address.removesuffix("/v1")
                return self
        raise AssertionError(f"it ended instead: {self.wait()}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def wait(self) -> tuple[int, list[str]]:
        """Wait for the exit; the exit code and the lines on stderr that are no log lines."""
        exit_code = self.process.wait(EXIT_TIMEOUT_SECONDS)
        self._errors.seek(0)
        return exit_code, [line.rstrip() for line in self._errors if not line.startswith("{")]

    def kill(self) -> None:
        """Kill the process if it still runs, and free what it leaves."""
        if self._client is not None:
            self._client.close()
        self.process.kill()
        self.process.wait(EXIT_TIMEOUT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


@contextmanager
def coordinator_process(*arguments: str) -> Iterator[CoordinatorProcess]:
    """A coordinator that serves; killed in the end, whatever happens."""
    coordinator = CoordinatorProcess(*arguments)
    try:
        yield coordinator.wait_until_serving()
    finally:
        coordinator.kill()


def wait_for(
    client: Client, holds: Callable[[ClusterStatus], bool], *, seconds: float
) -> ClusterStatus:
    """Ask for the status until the condition holds; fails when it does not in that time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not holds(status := client.status()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s: {status}"
        pause.wait(POLL_SECONDS)
    return status


def greedy_tokens(
    client: Client, *, num_tokens: int, prompt: Sequence[int] = PROMPT
) -> tuple[int, ...]:
    """num_tokens tokens after the prompt, past any end of sequence."""
    answer = client.complete(prompt, max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return answer.token_ids
