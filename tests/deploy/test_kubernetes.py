"""The manifests of deploy/kubernetes: valid, consistent with each other, and for unprivileged pods."""

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from common.config import CoordinatorConfig, WorkerConfig
from common.config_loader import load_config
from tests.fakes.kustomization import NEWEST, Object, build, containers, one, pods

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OLDEST = "1.27"
"""Version of Kubernetes since which probes over gRPC are stable."""

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.fixture(params=["base", "gpu"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What one of the two folders builds to."""
    return build(FOLDER / request.param)


@pytest.fixture
def settings(objects: list[Object], tmp_path: Path) -> Path:
    """The settings file that pods mount."""
    file = tmp_path / "stepwire.toml"
    file.write_text(one(objects, "ConfigMap", "stepwire")["data"]["stepwire.toml"])
    return file


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_api_accepts_every_object(objects: list[Object], version: str):
    """Each object fits the schema of its kind, without a field that the schema does not know."""
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_no_object_stands_there_twice(objects: list[Object]):
    """Kinds and names are unique, so that nothing overwrites another."""
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_there_is_a_worker_for_each_stage(objects: list[Object], settings: Path):
    """The settings name each pod of the StatefulSet by its DNS name, in order."""
    workers = one(objects, "StatefulSet", "stepwire-worker")["spec"]
    service = one(objects, "Service", workers["serviceName"])["metadata"]["name"]
    config = load_config(CoordinatorConfig, file=settings, environ={}, flags={})
    assert config.cluster.workers == tuple(
        f"stepwire-worker-{index}.{service}:50061" for index in range(workers["replicas"])
    )


def test_workers_are_reached_before_they_are_ready(objects: list[Object]):
    """Workers start side by side and have names at once: it is the coordinator that loads them."""
    workers = one(objects, "StatefulSet", "stepwire-worker")["spec"]
    service = one(objects, "Service", workers["serviceName"])["spec"]
    assert workers["podManagementPolicy"] == "Parallel"
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_coordinators_never_overlap(objects: list[Object]):
    """There is one coordinator, and the old one ends before the new one starts."""
    spec = one(objects, "Deployment", "stepwire-coordinator")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")


def test_pods_are_killed_after_they_had_time_to_drain(objects: list[Object], settings: Path):
    """Running requests get their time, and workers live at least as long as their coordinator."""
    serve = load_config(CoordinatorConfig, file=settings, environ={}, flags={}).serve
    worker = load_config(WorkerConfig, file=settings, environ={}, flags={})
    grace = {name: pod["terminationGracePeriodSeconds"] for name, pod in pods(objects).items()}
    assert serve.drain_timeout + 10 <= grace["stepwire-coordinator"]
    assert worker.drain_timeout + 10 <= grace["stepwire-worker"]
    assert serve.drain_timeout < worker.drain_timeout


def test_the_imported_model_is_the_served_one(objects: list[Object], settings: Path):
    """Init containers import what the settings name."""
    served = tomllib.loads(settings.read_text())["model"]["model"]
    imported = [pod["initContainers"][0]["command"][-1] for pod in pods(objects).values()]
    assert imported == [served] * 2


def test_pods_run_without_privileges(objects: list[Object]):
    """No root, no token, no capability, nothing to write to but volumes."""
    for pod in pods(objects).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
    for container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert {"name": "HOME", "value": "/tmp"} in container["env"]


def test_pods_run_as_the_user_of_the_images(objects: list[Object]):
    """The user that owns /models in the images is the one that pods and their volumes have."""
    user = str({pod["securityContext"]["runAsUser"] for pod in pods(objects).values()}.pop())
    for pod in pods(objects).values():
        context = pod["securityContext"]
        assert {str(context[key]) for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
    for dockerfile in (ROOT / "docker").glob("*.Dockerfile"):
        assert f"USER {user}:{user}\n" in dockerfile.read_text(), dockerfile.name


def test_only_the_import_writes_models(objects: list[Object]):
    """What serves reads the model alone, and asks no hub for it."""
    for pod in pods(objects).values():
        (container,) = pod["containers"]
        models = {"name": "models", "mountPath": "/models", "readOnly": True}
        assert models in container["volumeMounts"]
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]


def test_services_bring_no_variables(objects: list[Object]):
    """A variable such as STEPWIRE_PORT, made for a Service of that name, would be no known setting."""
    assert [pod["enableServiceLinks"] for pod in pods(objects).values()] == [False, False]


def test_every_container_says_what_it_needs(objects: list[Object]):
    """Pods are placed by what they ask for, and memory is bounded."""
    for container in containers(objects):
        resources = container["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in resources["limits"]


def test_every_port_in_use_is_declared(objects: list[Object], settings: Path):
    """Probes, services, policies and flags use the ports that the settings open."""
    config = load_config(CoordinatorConfig, file=settings, environ={}, flags={})
    worker = load_config(WorkerConfig, file=settings, environ={}, flags={})
    opened = {
        "stepwire-coordinator": {"http": config.serve.http_port, "grpc": config.serve.grpc_port},
        "stepwire-worker": {
            "grpc": int(worker.listen.rpartition(":")[2]),
            "tensors": worker.tensor_bind[1],
            "metrics": int((worker.metrics_listen or "").rpartition(":")[2]),
        },
    }
    for name, pod in pods(objects).items():
        (container,) = pod["containers"]
        declared = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert declared == opened[name]
        assert {container[kind]["grpc"]["port"] for kind in PROBES} == {declared["grpc"]}
        flags = " ".join(container["command"])
        assert {int(port) for port in re.findall(r":(\d+)\b", flags)} <= set(declared.values())
        rules = one(objects, "NetworkPolicy", name)["spec"]["ingress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == declared.keys()
    for service in ("stepwire", "stepwire-worker"):
        workload = {"stepwire": "stepwire-coordinator"}.get(service, service)
        ports = one(objects, "Service", service)["spec"]["ports"]
        assert {port["targetPort"]: port["port"] for port in ports} == opened[workload]


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "PodDisruptionBudget"])
def test_selectors_find_pods(objects: list[Object], kind: str):
    """What selects pods selects those of exactly one workload, by all of its labels."""
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if "template" in each.get("spec", {})
    ]
    for each in objects:
        if each["kind"] == kind:
            assert _selector(each["spec"]) in labels


def test_a_gpu_worker_has_one_gpu():
    """The overlay adds a device for each worker and changes neither the coordinator nor a probe."""
    base, gpu = build(FOLDER / "base"), build(FOLDER / "gpu")
    coordinator = [one(objects, "Deployment", "stepwire-coordinator") for objects in (base, gpu)]
    (worker,) = pods(gpu)["stepwire-worker"]["containers"]
    for spec in (each["spec"]["template"]["spec"] for each in coordinator):
        spec.pop("initContainers")
    assert coordinator[0] == coordinator[1]
    (without,) = pods(base)["stepwire-worker"]["containers"]
    assert {kind: worker[kind] for kind in PROBES} == {kind: without[kind] for kind in PROBES}
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "STEPWIRE_DEVICE", "value": "cuda:0"} in worker["env"]
    assert worker["image"] == "stepwire-worker-cuda:latest"


def test_metrics_are_read_where_they_are(objects: list[Object]):
    """The annotations that Prometheus looks for name a port of the container."""
    for each in objects:
        if "template" in each.get("spec", {}):
            template = each["spec"]["template"]
            (container,) = template["spec"]["containers"]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            scraped = ports.get("metrics", ports.get("http"))
            assert template["metadata"]["annotations"]["prometheus.io/port"] == str(scraped)


def _selector(spec: dict[str, Any]) -> dict[str, str]:
    selector = spec.get("podSelector") or spec["selector"]
    return selector.get("matchLabels", selector)
