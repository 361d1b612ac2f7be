"""What a coordinator's metrics are read from: its state at a moment, and what was counted so far."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from common.distribution import Distribution
from common.metrics import MetricKind, MetricSpec, Samples
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.measures import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """max_model_len: None until the model is known."""

    status: ClusterStatus
    measures: Measures
    max_model_len: int | None = None


Spec = MetricSpec[ServingState]


def _single(
    kind: MetricKind,
    name: str,
    help_text: str,
    read: Callable[[ServingState], float | Distribution | None],
) -> Spec:
    """A metric without labels; None: there is no sample now."""

    def samples(state: ServingState) -> Samples:
        value = read(state)
        return {} if value is None else {(): value}

    return MetricSpec(name=name, kind=kind, help=help_text, read=samples)


single_gauge = partial(_single, MetricKind.GAUGE)
single_counter = partial(_single, MetricKind.COUNTER)
single_histogram = partial(_single, MetricKind.HISTOGRAM)
