"""The shipped compose file in real containers, as its user would run it; not part of the tests.

    python -m tests.deploy.compose_acceptance --compose podman-compose

builds the images, starts everything, asks from this machine, restarts what must be restartable alone,
and stops all of it while an answer is streamed. Settings of this machine, such as certificates, come
with `--file` and after `--`:

    python -m tests.deploy.compose_acceptance --file mine.yml -- --podman-build-args="-v ..."
"""

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx

from common.clock import Clock, SystemClock

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:{port}/v1"
WORKERS = ("worker-0", "worker-1")
PROBES = {
    **{worker: ("127.0.0.1:50061", "stepwire.v1.Worker") for worker in WORKERS},
    "coordinator": ("127.0.0.1:50050", "stepwire.v1.Inference"),
}
QUESTION = {
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
EXPECTED = "Paris"
STREAM = {
    "prompt": "Once upon a time",
    "temperature": 0,
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
NUM_READ_BEFORE_STOP = 20
UP_SECONDS = 300.0
PAUSE_SECONDS = 0.5


class Failed(Exception):
    """The deployment does not do what it promises; the message says what."""


class Project:
    """The compose file as one project, of a name and a port of its own."""

    def __init__(self, compose: list[str], *, port: int) -> None:
        self._compose = compose
        self.url = URL.format(port=port)

    def call(self, *arguments: str) -> str:
        """Run a compose command that must succeed, and return what it printed."""
        done = self._run(*arguments)
        if done.returncode != 0:
            raise Failed(f"{shlex.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside the container of a service."""
        return self._run("exec", "-T", service, *command)

    def is_healthy(self, service: str) -> bool:
        """Whether the health check of a service passes."""
        address, name = PROBES[service]
        probe = self.execute(service, "stepwire", "probe", "-addr", address, "-service", name)
        return probe.returncode == 0

    def chat(self) -> str:
        """The answer to the question, asked from this machine."""
        answer = httpx.post(f"{self.url}/chat/completions", json=QUESTION, timeout=120)
        if answer.status_code != 200:
            raise Failed(f"a chat is answered with {answer.status_code}: {answer.text}")
        return answer.json()["choices"][0]["message"]["content"]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._compose, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )


class Engine:
    """What the container engine knows of a project's containers, whatever compose made of them."""

    def __init__(self, program: str, *, project: str) -> None:
        self._program = program
        self._filter = f"--filter=label=com.docker.compose.project={project}"

    def table(self) -> str:
        """The containers, ended ones included, for people."""
        return self._call("ps", "--all", self._filter)

    def exit_codes(self) -> dict[str, int]:
        """Exit code by container; only of containers that have ended."""
        names = self._call("ps", "--all", self._filter, "--format={{.Names}}").split()
        form = "--format={{.State.Status}} {{.State.ExitCode}}"
        states = {name: self._call("inspect", form, name).split() for name in names}
        return {name: int(code) for name, (state, code) in states.items() if state == "exited"}

    def image_sizes(self) -> str:
        """Name and size of the images that were built here."""
        listed = self._call("images", "--format={{.Repository}} {{.Size}}").splitlines()
        return "\n".join(sorted(line for line in listed if "stepwire-" in line))

    def _call(self, *arguments: str) -> str:
        return subprocess.run(
            [self._program, *arguments], capture_output=True, text=True, check=True
        ).stdout


def wait_until(is_true: Callable[[], bool], *, what: str) -> None:
    """Look again and again until something holds."""
    pause = threading.Event()
    for _ in range(int(UP_SECONDS / PAUSE_SECONDS)):
        if is_true():
            return
        pause.wait(PAUSE_SECONDS)
    raise Failed(f"{what} did not come to pass in {UP_SECONDS:.0f} s")


def check_serving(project: Project) -> None:
    """Every health check passes, `status` names each rank, and a chat is answered."""
    for service in PROBES:
        wait_until(lambda: project.is_healthy(service), what=f"health of {service}")  # noqa: B023 - called at once
    status = project.execute("coordinator", "stepwire", "status").stdout
    click.echo(status)
    for stage, worker in enumerate(WORKERS):
        if f"stage {stage}  {worker}:50061" not in status:
            raise Failed(f"the status does not name {worker}")
    answer = project.chat()
    click.echo(f"answer: {answer}")
    if EXPECTED not in answer:
        raise Failed(f"the answer does not name {EXPECTED}")


def check_restart(project: Project, service: str, *, clock: Clock) -> None:
    """A container that is restarted alone serves again."""
    click.echo(f"\n--- restart {service}")
    started = clock.monotonic()
    project.call("restart", service)
    restarted = clock.monotonic()
    check_serving(project)
    served = clock.monotonic()
    click.echo(
        f"restarted in {restarted - started:.0f} s, answering {served - restarted:.0f} s later"
    )


def check_stop(project: Project, engine: Engine) -> None:
    """Stopping everything loses nothing of an answer that is being streamed."""
    click.echo("\n--- stop while an answer is streamed")
    stopping = threading.Thread(target=project.call, args=("stop",), name="compose stop")
    events: list[dict[str, object]] = []
    for event in stream(f"{project.url}/completions"):
        events.append(event)
        if len(events) == NUM_READ_BEFORE_STOP:
            stopping.start()
    stopping.join()
    usage = events[-1]["usage"]
    click.echo(f"stopped after {NUM_READ_BEFORE_STOP} events of {len(events)}; usage {usage}")
    if not isinstance(usage, dict) or usage["completion_tokens"] != STREAM["max_tokens"]:
        raise Failed(f"the stream was cut: {events[-1]}")
    if wrong := {name: code for name, code in engine.exit_codes().items() if code != 0}:
        raise Failed(f"containers ended with {wrong}")


def stream(url: str) -> Iterator[dict[str, object]]:
    """The events of a streamed completion, which must end with [DONE]."""
    with httpx.stream("POST", url, json=STREAM, timeout=120) as response:
        if response.status_code != 200:
            raise Failed(f"a stream is refused: {response.read().decode()}")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
    raise Failed("the stream ended without [DONE]")


@contextmanager
def brought_up(project: Project) -> Iterator[None]:
    """Build and start everything; in the end containers and volumes are removed."""
    try:
        click.echo("--- build and start; the first time this takes minutes")
        project.call("up", "--build", "--detach")
        yield
    finally:
        project.call("down", "--volumes")


@click.command()
@click.option("--compose", default="docker compose", show_default=True)
@click.option("--engine", "program", help="The container engine  [default: the one of --compose]")
@click.option("--file", "files", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--project", "name", default="stepwire-acceptance", show_default=True)
@click.option("--port", default=8000, show_default=True, help="STEPWIRE_HTTP_PORT, if it is set.")
@click.argument("options", nargs=-1)
def main(
    *,
    compose: str,
    program: str | None,
    files: tuple[Path, ...],
    name: str,
    port: int,
    options: tuple[str, ...],
) -> None:
    """Run the whole acceptance; exits 1 with what failed."""
    given = [f"--file={file.resolve()}" for file in (ROOT / "docker-compose.yml", *files)]
    command = [*shlex.split(compose), f"--project-name={name}", *given, *options]
    project = Project(command, port=port)
    engine = Engine(program or ("podman" if "podman" in compose else "docker"), project=name)
    try:
        with brought_up(project):
            check_serving(project)
            click.echo(engine.table())
            click.echo(engine.image_sizes())
            for service in ("coordinator", *WORKERS):
                check_restart(project, service, clock=SystemClock())
            check_stop(project, engine)
            click.echo(engine.table())
    except Failed as failure:
        click.echo(f"acceptance failed: {failure}", err=True)
        sys.exit(1)
    click.echo("every check passed")


if __name__ == "__main__":
    main()
