"""The pods of deploy/kubernetes as processes here: what each probe says, from start to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from coordinator.probe import ProbeExit
from tests.fakes.kustomization import build, one, pods
from tests.fakes.local_pods import Cluster, LocalPod, loopback_address
from tests.fakes.tiny_checkpoint import write_tiny_llama

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SMALL = {
    "STEPWIRE_KV_CACHE_BYTES": str(1 << 23),
    "STEPWIRE_MAX_MODEL_LEN": "512",
    "STEPWIRE_MAX_NUM_BATCHED_TOKENS": "64",
}
"""Small budgets, so that profiling and warming up take no time."""

STARTUP_SECONDS = 60.0
PAUSE_SECONDS = 0.05


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """The manifests, with a tiny model where the init containers put the bundled one."""
    write_tiny_llama(tmp_path / "models" / "smollm2-135m", num_layers=2)
    objects = build(FOLDER / "base")
    num_workers = one(objects, "StatefulSet", "stepwire-worker")["spec"]["replicas"]
    hosts = [f"stepwire-worker-{index}.stepwire-worker" for index in range(num_workers)]
    return Cluster(
        objects=objects,
        address_by_host={host: loopback_address(index) for index, host in enumerate(hosts)},
        folder_by_mount={"/models": tmp_path, "/tmp": tmp_path},
        variables=SMALL,
    )


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what a test starts."""
    with ExitStack() as stack:
        yield stack


def start_worker(index: int, *, cluster: Cluster, started: ExitStack) -> LocalPod:
    """A pod of the StatefulSet."""
    pod = pods(cluster.objects)["stepwire-worker"]
    return _start(f"stepwire-worker-{index}", pod, index=index, cluster=cluster, started=started)


def start_coordinator(*, cluster: Cluster, started: ExitStack) -> LocalPod:
    """The pod of the Deployment."""
    pod = pods(cluster.objects)["stepwire-coordinator"]
    return _start("stepwire-coordinator-0", pod, index=3, cluster=cluster, started=started)


def _start(name: str, pod: dict, *, index: int, cluster: Cluster, started: ExitStack) -> LocalPod:
    process = LocalPod(name, pod, address=loopback_address(index), cluster=cluster)
    started.callback(process.kill)
    return process


def wait_until_passed(pod: LocalPod, kind: str) -> None:
    """Run a probe again and again until it passes; fails when the process ends or takes too long."""
    pause = threading.Event()
    for _ in range(int(STARTUP_SECONDS / PAUSE_SECONDS)):
        if pod.probe(kind) is ProbeExit.SERVING:
            return
        assert pod.process.poll() is None, pod.log()
        pause.wait(PAUSE_SECONDS)
    raise AssertionError(f"{kind} never passed: {pod.log()}")


def test_probes_from_start_to_end(cluster: Cluster, started: ExitStack):
    """Workers are ready without a group, the coordinator with it; a chat is answered; SIGTERM ends all."""
    coordinator = start_coordinator(cluster=cluster, started=started)
    wait_until_passed(coordinator, "startupProbe")
    assert coordinator.probe("livenessProbe") is ProbeExit.SERVING
    assert coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY

    first = start_worker(0, cluster=cluster, started=started)
    wait_until_passed(first, "startupProbe")
    assert first.probe("livenessProbe") is ProbeExit.SERVING
    assert first.probe("readinessProbe") is ProbeExit.SERVING
    assert coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY

    last = start_worker(1, cluster=cluster, started=started)
    wait_until_passed(coordinator, "readinessProbe")
    answer = httpx.post(
        f"http://{coordinator.address}:8000/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "smollm2-135m"
    for pod in (first, last, coordinator):
        assert pod.probe("livenessProbe") is ProbeExit.SERVING
        assert pod.probe("readinessProbe") is ProbeExit.SERVING

    everything = (first, last, coordinator)
    for pod in everything:
        pod.process.send_signal(signal.SIGTERM)
    for pod in everything:
        assert pod.process.wait(30) == 0, pod.log()


def test_a_worker_that_went_makes_the_coordinator_unready(cluster: Cluster, started: ExitStack):
    """A lost worker takes the coordinator out of its Service, and its successor puts it back."""
    everything = [start_worker(index, cluster=cluster, started=started) for index in range(2)]
    coordinator = start_coordinator(cluster=cluster, started=started)
    wait_until_passed(coordinator, "readinessProbe")
    everything[1].kill()
    pause = threading.Event()
    for _ in range(int(STARTUP_SECONDS / PAUSE_SECONDS)):
        if coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY:
            break
        pause.wait(PAUSE_SECONDS)
    assert coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY
    assert coordinator.probe("livenessProbe") is ProbeExit.SERVING
    start_worker(1, cluster=cluster, started=started)
    wait_until_passed(coordinator, "readinessProbe")
