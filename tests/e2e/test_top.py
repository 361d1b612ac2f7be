"""`stepwire top` in a terminal of its own, in front of a service whose state is written by hand."""

import asyncio
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from stepwire.v1 import cluster_pb2_grpc

from common.config_loader import child_environment
from common.rpc.server import bind, build_server
from coordinator.api.cluster_servicer import ClusterServicer
from coordinator.engine.cluster_status import ClusterStatus
from tests.fakes.cluster_states import REBUILDING

ROOT = Path(__file__).parents[2]
STEPWIRE = [sys.executable, "-m", "coordinator"]
PATIENCE_S = 20.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Service:
    """The gRPC service Cluster of a coordinator that is not there."""

    def __init__(self) -> None:
        self.status: ClusterStatus = REBUILDING
        self.server = build_server(interceptors=[])
        servicer = ClusterServicer(lambda: self.status)
        cluster_pb2_grpc.add_ClusterServicer_to_server(servicer, self.server)
        self.address = f"127.0.0.1:{bind(self.server, '127.0.0.1:0')}"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service that answers."""
    service = Service()
    await service.server.start()
    yield service
    await service.server.stop(None)


class Terminal:
    """What a program drew on a terminal, and keys for it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process

    async def wait_for(self, text: str) -> str:
        """Read until the text was drawn."""
        drawn = ""
        async with asyncio.timeout(PATIENCE_S):
            while text not in drawn:
                drawn += ESCAPES.sub("", (await asyncio.to_thread(self._read)).decode())
        return drawn

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._descriptor, key.encode())

    def echoes(self) -> bool:
        """Whether keys are shown, as a terminal does that no program has taken over."""
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def _read(self) -> bytes:
        return os.read(self._descriptor, 1 << 16)


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[Terminal]:
    """A command that thinks that somebody watches."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*STEPWIRE, *arguments],
        cwd=ROOT,
        env=child_environment() | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        stdin=its,
        stdout=its,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


async def test_the_screen_follows_the_state_until_q(service):
    """A rank that comes back is seen, so is a coordinator that goes, and q gives the terminal back."""
    with on_a_terminal("top", f"--address={service.address}", "--interval=0.1") as terminal:
        await terminal.wait_for("LOST: killed by SIGKILL")
        assert not terminal.echoes()
        service.status = replace(REBUILDING, detail="loading stage 1")
        await terminal.wait_for("loading stage 1")
        await service.server.stop(None)
        await terminal.wait_for("Trying again; this is how it was.")
        terminal.press("q")
        assert await asyncio.to_thread(terminal.process.wait, PATIENCE_S) == 0
        assert terminal.echoes()


async def test_without_a_terminal_it_prints_once(service):
    """Piped into a file or another program it is one screen, and the end."""
    process = await asyncio.create_subprocess_exec(
        *[*STEPWIRE, "top", f"--address={service.address}"],
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert "\x1b" not in printed.decode()
    assert "waiting for stage 1 (have 1 of 2)" in printed.decode()
    assert process.returncode == 0


def test_nobody_there_is_one_line_and_exit_code_1():
    """As of every other command."""
    ended = subprocess.run(
        [*STEPWIRE, "top", "--address=127.0.0.1:1"],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: no answer from 127.0.0.1:1; is a coordinator there?\n"
