"""A question answered by three processes: two pipeline stages and a coordinator, joined by gRPC and ZMQ.

Imports the bundled model first. Exits 0 when the answer names Paris and every process ended with 0
after SIGTERM; otherwise prints the ends of their logs and exits 1.
"""

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory

import click

from common.config_loader import child_environment
from coordinator.answer import ask
from coordinator.banner import topology_lines
from coordinator.client import AsyncClient
from coordinator.engine.generation import ChatTurn

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
NUM_STAGES = 2

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 60.0
LOG_LINES = 20

STEPWIRE = Path(sys.executable).with_name("stepwire")
GRPC_ADDRESS = re.compile(r"gRPC\s+(\S+)")


class DemoFailed(Exception):
    """The line does not work; the message says where."""


class DemoProcess:
    """One `stepwire` process; its log goes to a file, its stdout is read here."""

    def __init__(self, process: Process, *, name: str, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, *arguments: str, name: str, logs: Path) -> "DemoProcess":
        """Run `stepwire ARGUMENTS`, without settings of the caller's environment."""
        log = logs / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                STEPWIRE, *arguments, stdout=PIPE, stderr=stderr, env=child_environment()
            )
        return cls(process, name=name, log=log)

    async def read_until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Read stdout up to the first line in which the pattern is found."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for line in self._process.stdout:
                    if match := pattern.search(line.decode()):
                        return match
        except TimeoutError:
            raise DemoFailed(f"{self.name} did not start in {START_TIMEOUT_S:.0f} s") from None
        raise DemoFailed(f"{self.name} ended before it was ready")

    async def end(self) -> None:
        """Ask the process to end and check that it does, with exit code 0."""
        self._process.send_signal(SIGTERM)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                returncode = await self._process.wait()
        except TimeoutError:
            raise DemoFailed(
                f"{self.name} did not end {END_TIMEOUT_S:.0f} s after SIGTERM"
            ) from None
        if returncode != 0:
            raise DemoFailed(f"{self.name} ended with exit code {returncode}")

    async def kill(self) -> None:
        """Leave nothing behind, however far the demo got."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def last_log_lines(self) -> str:
        """The end of the log, under the process's name."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"--- {self.name}", *lines])


async def start_worker(stage: int, *, logs: Path, stack: AsyncExitStack) -> DemoProcess:
    """Start a worker that shares the cores with the others."""
    threads = max(1, (os.cpu_count() or 1) // NUM_STAGES)
    worker = await DemoProcess.start(
        "worker", f"--threads={threads}", name=f"worker-{stage}", logs=logs
    )
    stack.push_async_callback(worker.kill)
    return worker


async def start_coordinator(
    addresses: Sequence[str], *, logs: Path, stack: AsyncExitStack
) -> DemoProcess:
    """Start a coordinator over the workers, on free ports."""
    coordinator = await DemoProcess.start(
        "coordinator",
        f"--model={MODEL}",
        f"--workers={','.join(addresses)}",
        "--grpc-port=0",
        "--http-port=0",
        name="coordinator",
        logs=logs,
    )
    stack.push_async_callback(coordinator.kill)
    return coordinator


async def answer_question(address: str) -> None:
    """Print topology, answer and figures; fails when the answer is wrong."""
    async with AsyncClient(address) as client:
        status = await client.status()
    click.echo("\n".join(topology_lines(status.model, status.workers)))
    click.echo(f"\n> {QUESTION}")
    answer: list[str] = []

    def write(text: str) -> None:
        answer.append(text)
        click.echo(text, nl=False)

    turns = (ChatTurn(role="user", content=QUESTION),)
    stats = await asyncio.to_thread(
        ask, turns, {"temperature": 0.0, "max_tokens": 48}, address=address, write=write
    )
    click.echo(f"\n\n{stats}")
    if EXPECTED not in "".join(answer):
        raise DemoFailed(f"the answer does not name {EXPECTED}")


async def import_model() -> None:
    """Import the bundled model, which shows its progress on stderr."""
    process = await asyncio.create_subprocess_exec(
        STEPWIRE, "model", "import", MODEL, stdout=PIPE, env=child_environment()
    )
    await process.communicate()
    if process.returncode != 0:
        raise DemoFailed(f"{MODEL} was not imported")


async def serve_and_ask(processes: list[DemoProcess], *, logs: Path) -> None:
    """Start the three processes, ask, and end them; what was started is noted in `processes`."""
    async with AsyncExitStack() as stack:
        for stage in range(NUM_STAGES):
            processes.append(await start_worker(stage, logs=logs, stack=stack))
        ready = [await worker.read_until(re.compile(r"\{.*\}")) for worker in processes]
        addresses = [json.loads(match[0])["address"] for match in ready]
        coordinator = await start_coordinator(addresses, logs=logs, stack=stack)
        processes.append(coordinator)
        address = (await coordinator.read_until(GRPC_ADDRESS))[1]
        await answer_question(address)
        # The coordinator first: it releases its workers, which then have nothing left to serve.
        for process in reversed(processes):
            await process.end()


async def demo() -> int:
    """Run the demo and return its exit code."""
    processes: list[DemoProcess] = []
    with TemporaryDirectory(prefix="stepwire-demo-") as folder:
        try:
            await import_model()
            click.echo(f"starting {NUM_STAGES} workers and a coordinator")
            await serve_and_ask(processes, logs=Path(folder))
        except DemoFailed as failure:
            click.echo("\n".join(process.last_log_lines() for process in processes), err=True)
            click.echo(f"demo failed: {failure}", err=True)
            return 1
    click.echo("every process ended with exit code 0")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(demo()))
