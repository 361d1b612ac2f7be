"""docker-compose.yml: its services as processes here, their health checks, and who waits for whom."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.fakes.local_container import LocalContainer, loopback_address
from tests.fakes.tiny_checkpoint import write_tiny_llama

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("docker-compose*.yml"))
WORKERS = ("worker-0", "worker-1")
COORDINATOR = "coordinator"
SMALL = {
    "STEPWIRE_KV_CACHE_BYTES": str(1 << 23),
    "STEPWIRE_MAX_MODEL_LEN": "512",
    "STEPWIRE_MAX_NUM_BATCHED_TOKENS": "64",
    "STEPWIRE_THREADS": "1",
}
"""Small budgets, so that profiling and warming up take no time."""

STARTUP_SECONDS = 60.0
PAUSE_SECONDS = 0.2


class Tagged(yaml.SafeLoader):
    """Reads the tags by which a second file replaces what the first one says."""


for tag in ("!override", "!reset"):
    Tagged.add_constructor(tag, lambda loader, node: loader.construct_sequence(node))


def services(file: Path) -> dict[str, Any]:
    """The services of a compose file, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", file.read_text())
    return yaml.load(text, Loader=Tagged)["services"]


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what a test starts."""
    with ExitStack() as stack:
        yield stack


def start(name: str, *, models: Path, started: ExitStack) -> LocalContainer:
    """The command of a service, with the folder of models where its volume is."""
    hosts = (*WORKERS, COORDINATOR)
    container = LocalContainer(
        ["stepwire", *services(ROOT / "docker-compose.yml")[name]["command"]],
        address=loopback_address(hosts.index(name)),
        places={host: loopback_address(hosts.index(host)) for host in WORKERS},
        variables={"STEPWIRE_CACHE": str(models), **SMALL},
    )
    started.callback(container.kill)
    return container


def is_healthy(name: str, container: LocalContainer) -> bool:
    """Run the health check of a service once."""
    kind, *command = services(ROOT / "docker-compose.yml")[name]["healthcheck"]["test"]
    assert kind == "CMD", "a shell would be one more thing the images need"
    return container.run(command, seconds=20) == 0


def wait_until_healthy(name: str, container: LocalContainer) -> None:
    """Run a health check again and again until it passes."""
    pause = threading.Event()
    for _ in range(int(STARTUP_SECONDS / PAUSE_SECONDS)):
        if is_healthy(name, container):
            return
        assert container.process.poll() is None, container.log()
        pause.wait(PAUSE_SECONDS)
    raise AssertionError(f"{name} never got healthy: {container.log()}")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nobody_waits_for_healthy_workers(file: Path):
    """No service waits for the health of another: workers get their model from who would wait."""
    conditions = {
        (name, other): condition
        for name, service in services(file).items()
        for other, condition in _dependencies(service).items()
    }
    assert "service_healthy" not in conditions.values(), conditions


def test_health_checks_from_start_to_end(tmp_path: Path, started: ExitStack):
    """Workers are healthy without a group, the coordinator with it; a chat is answered; SIGTERM ends all."""
    write_tiny_llama(tmp_path / "models" / "smollm2-135m", num_layers=2)
    coordinator = start(COORDINATOR, models=tmp_path, started=started)
    first = start(WORKERS[0], models=tmp_path, started=started)
    wait_until_healthy(WORKERS[0], first)
    assert not is_healthy(COORDINATOR, coordinator)

    last = start(WORKERS[1], models=tmp_path, started=started)
    wait_until_healthy(COORDINATOR, coordinator)
    assert is_healthy(WORKERS[0], first)
    assert is_healthy(WORKERS[1], last)
    answer = httpx.post(
        f"http://{coordinator.address}:8000/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text

    everything = (first, last, coordinator)
    for container in everything:
        container.process.send_signal(signal.SIGTERM)
    for container in everything:
        assert container.process.wait(30) == 0, container.log()


def test_containers_are_killed_after_they_had_time_to_drain():
    """Running requests get their time, and workers live at least as long as their coordinator."""
    served = services(ROOT / "docker-compose.yml")
    grace = {name: _seconds(served[name]["stop_grace_period"]) for name in (*WORKERS, COORDINATOR)}
    drain = {name: _drain_timeout(served[name]["command"]) for name in grace}
    for name in grace:
        assert drain[name] + 10 <= grace[name], name
    assert drain[COORDINATOR] < min(drain[worker] for worker in WORKERS)


def _dependencies(service: dict[str, Any]) -> dict[str, str]:
    waits_for = service.get("depends_on", {})
    if isinstance(waits_for, list):
        return dict.fromkeys(waits_for, "service_started")
    return {name: each.get("condition", "service_started") for name, each in waits_for.items()}


def _seconds(text: str) -> float:
    assert re.fullmatch(r"\d+s", text), text
    return float(text.removesuffix("s"))


def _drain_timeout(command: list[str]) -> float:
    (flag,) = [each for each in command if each.startswith("--drain-timeout=")]
    return float(flag.partition("=")[2])
