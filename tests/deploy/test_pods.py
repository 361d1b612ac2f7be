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
from tests.fakes.local_container import loopback_address
from tests.fakes.local_pods import Cluster, LocalPod
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


def wait_until(pod: LocalPod, kind: str, expected: ProbeExit) -> None:
    """Run a probe until it says so; fails when the process ends or it takes too long."""
    pause = threading.Event()
    for _ in range(int(STARTUP_SECONDS / PAUSE_SECONDS)):
        if pod.probe(kind) is expected:
            return
        assert pod.process.poll() is None, pod.log()
        pause.wait(PAUSE_SECONDS)
    raise AssertionError(f"{kind} is never {expected.name}: {pod.log()}")


def scrape(pod: LocalPod, *, workload: tuple[str, str], cluster: Cluster) -> str:
    """What Prometheus reads at the port that the annotations of a pod name."""
    template = one(cluster.objects, *workload)["spec"]["template"]
    port = template["metadata"]["annotations"]["prometheus.io/port"]
    answer = httpx.get(f"http://{pod.address}:{port}/metrics")
    assert answer.status_code == 200
    return answer.text


def test_probes_from_start_to_end(cluster: Cluster, started: ExitStack):
    """Workers are ready without a group, the coordinator only with it, and again once a lost one is back."""
    coordinator = start_coordinator(cluster=cluster, started=started)
    wait_until(coordinator, "startupProbe", ProbeExit.SERVING)
    assert coordinator.probe("livenessProbe") is ProbeExit.SERVING
    assert coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY

    first = start_worker(0, cluster=cluster, started=started)
    wait_until(first, "startupProbe", ProbeExit.SERVING)
    assert first.probe("livenessProbe") is ProbeExit.SERVING
    assert first.probe("readinessProbe") is ProbeExit.SERVING
    assert "stepwire_" in scrape(
        first, workload=("StatefulSet", "stepwire-worker"), cluster=cluster
    )
    assert coordinator.probe("readinessProbe") is ProbeExit.UNHEALTHY

    lost = start_worker(1, cluster=cluster, started=started)
    wait_until(coordinator, "readinessProbe", ProbeExit.SERVING)
    answer = httpx.post(
        f"http://{coordinator.address}:8000/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "smollm2-135m"

    assert "vllm:" in scrape(
        coordinator, workload=("Deployment", "stepwire-coordinator"), cluster=cluster
    )

    lost.process.kill()
    wait_until(coordinator, "readinessProbe", ProbeExit.UNHEALTHY)
    assert coordinator.probe("livenessProbe") is ProbeExit.SERVING
    last = start_worker(1, cluster=cluster, started=started)
    wait_until(coordinator, "readinessProbe", ProbeExit.SERVING)

    everything = (first, last, coordinator)
    for pod in everything:
        assert pod.probe("livenessProbe") is ProbeExit.SERVING
        assert pod.probe("readinessProbe") is ProbeExit.SERVING
        pod.process.send_signal(signal.SIGTERM)
    for pod in everything:
        assert pod.process.wait(30) == 0, pod.log()
