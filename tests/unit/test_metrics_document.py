"""The tables of docs/metrics.md are those of the code."""

from pathlib import Path

from common.call_times import CALL_METRICS
from common.metrics import MetricKind, MetricSpec
from coordinator.api.cluster_metrics import CLUSTER_METRICS
from coordinator.api.http_times import HTTP_METRICS
from coordinator.api.serving_metrics import SERVING_METRICS
from worker_service.metrics import WORKER_METRICS

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
COORDINATOR_METRICS = (*SERVING_METRICS, *CLUSTER_METRICS, *CALL_METRICS, *HTTP_METRICS)
METRICS = (*COORDINATOR_METRICS, *WORKER_METRICS)


def row(spec: MetricSpec) -> str:
    """How the document tells of a metric."""
    name = spec.name if spec.kind is MetricKind.HISTOGRAM else spec.exposed_names[0]
    return f"| `{name}` | {spec.kind.value} | {', '.join(spec.labels)} | {spec.help} |"


def test_every_metric_is_documented_as_it_is():
    """Name, type, labels and meaning; nothing is documented that does not exist."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    documented = [line for line in lines if line.startswith(("| `vllm:", "| `stepwire_"))]
    assert documented == [row(spec) for spec in METRICS]


def test_names_are_declared_once_a_process():
    """No two tables of one process have a metric of the same name."""
    for table in (
        COORDINATOR_METRICS,
        (*WORKER_METRICS, *CALL_METRICS),
    ):
        names = [name for spec in table for name in spec.exposed_names]
        assert len(names) == len(set(names))
