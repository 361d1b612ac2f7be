"""A real worker process: started, its ready line read, ended or killed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from common.config_loader import child_environment

ROOT = Path(__file__).parents[2]
EXIT_TIMEOUT_SECONDS = 20.0


class WorkerProcess:
    """`python -m MODULE` with the given arguments, on free ports of the loopback interface."""

    def __init__(
        self, *arguments: str, module: str = "worker_service", log: IO[str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--device=cpu", "--threads=1"],
            cwd=ROOT,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.address = ""
        self.tensor_endpoint = ""
        self.incarnation = ""
        self.metrics_address = ""

    def wait_until_ready(self) -> "WorkerProcess":
        """Read the ready line, which is the first one on stdout."""
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        assert ready["event"] == "ready"
        self.address = ready["address"]
        self.tensor_endpoint = ready["tensor_endpoint"]
        self.incarnation = ready["incarnation"]
        self.metrics_address = ready.get("metrics_address", "")
        return self

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def close_stdin(self) -> None:
        """Close the pipe to its standard input, as a parent that dies does."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> tuple[int, str]:
        """Wait for the exit; the exit code and what stood on stdout after the ready line."""
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        return self.process.wait(EXIT_TIMEOUT_SECONDS), rest

    def kill(self) -> None:
        """Kill the process if it still runs, and free what it leaves."""
        self.process.kill()
        self.process.wait(EXIT_TIMEOUT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def worker_processes(count: int, *flags: str) -> Iterator[list[WorkerProcess]]:
    """So many workers, started side by side; killed in the end, whatever happens."""
    workers = [WorkerProcess(*flags) for _ in range(count)]
    try:
        yield [worker.wait_until_ready() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
