"""A real coordinator in a process of its own, on free ports, with a client of each protocol."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config_loader import child_environment
from coordinator.client import Client
from coordinator.engine.cluster_status import ClusterStatus

ROOT = Path(__file__).parents[2]
EXIT_TIMEOUT_SECONDS = 20.0
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 10.0

RUN = """
import asyncio, json, sys
from common.config import CoordinatorConfig
from common.config_loader import load_config
from common.errors import ServiceError
from common.logs import configure_logging
from coordinator.app import run_coordinator

def announce(serving):
    line = {"grpc_address": serving.grpc_address, "http_url": serving.http_url}
    sys.stdout.write(json.dumps(line) + chr(10))
    sys.stdout.flush()

configure_logging("coordinator", level="WARNING")
config = load_config(CoordinatorConfig, file=None, environ={}, flags=json.loads(sys.argv[1]))
try:
    code = asyncio.run(run_coordinator(config, ready=announce))
except ServiceError as error:
    sys.exit(f"error: {error}")
forbidden = {"torch", "transformers"} & set(sys.modules)
sys.stdout.write(json.dumps(sorted(forbidden)) + chr(10))
sys.exit(code)
"""
"""Prints where it serves, then, as its last line, which forbidden modules it imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCoordinator:
    """A coordinator that accepts requests."""

    process: "subprocess.Popen[str]"
    client: Client
    grpc_address: str
    http_url: str

    def wait_until(self, holds: Callable[[ClusterStatus], bool]) -> ClusterStatus:
        """Ask for the status until the condition holds; fails when it never does."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
            if holds(status := self.client.status()):
                return status
            pause.wait(POLL_SECONDS)
        raise AssertionError(f"still not so after {PATIENCE_SECONDS} s: {status}")

    def wait_until_idle(self) -> ClusterStatus:
        """Wait until no request is waiting or running and every block is free."""
        return self.wait_until(
            lambda status: (
                status.num_waiting + status.num_running == 0
                and status.num_free_blocks == status.num_blocks
            )
        )


@contextmanager
def running_coordinator(
    flags: Mapping[str, Any], *, run: Sequence[str] = ("-c", RUN)
) -> Iterator[RunningCoordinator]:
    """Start a coordinator with these settings on the CPU; it is killed if it does not end itself.

    run: what Python runs, with the settings as its last argument; it must print what RUN prints.
    """
    given = {"grpc_port": 0, "http_port": 0, "device": "cpu", "threads": 1, **flags}
    process = subprocess.Popen(
        [sys.executable, *run, json.dumps(given)],
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            serving = json.loads(process.stdout.readline())
            with Client(serving["grpc_address"]) as client:
                yield RunningCoordinator(process=process, client=client, **serving)
            process.terminate()
            process.wait(EXIT_TIMEOUT_SECONDS)
        finally:
            process.kill()
