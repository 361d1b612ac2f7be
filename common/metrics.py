"""What a process tells Prometheus, declared once: a table of names, each with the way to its value.

A table is read when somebody asks, from counts that the parts keep anyway; nothing on the way of a
step knows of metrics. Knows neither what is measured nor how it is served.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import (
    floatToGoString,  # pyright: ignore[reportUnknownVariableType] - it is not annotated
)

from common.distribution import Distribution

State = TypeVar("State")
Samples = Mapping[tuple[str, ...], float | Distribution]
"""Values by the values of their labels."""

STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Bounds of what a step takes, and of what is waited for within one."""

CALL_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the time of a call, streams of answers included."""


class MetricKind(Enum):
    """What Prometheus may do with a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec(Generic[State]):
    """One metric: its name (a counter's without "_total"), and its samples in a state."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    read: Callable[[State], Samples]

    @property
    def exposed_names(self) -> tuple[str, ...]:
        """The names of its samples."""
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.HISTOGRAM:
                return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))

    def family(self, state: State) -> Metric:
        """Its samples now."""
        samples = self.read(state)
        match self.kind:
            case MetricKind.COUNTER:
                family = CounterMetricFamily(self.name, self.help, labels=self.labels)
            case MetricKind.GAUGE:
                family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
            case MetricKind.HISTOGRAM:
                family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in samples.items():
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, Distribution), f"{self.name} is a histogram"
                family.add_metric(labels, buckets=_buckets(value), sum_value=value.total)
            else:
                assert not isinstance(value, Distribution), f"{self.name} is no histogram"
                family.add_metric(labels, value)
        return family


class TableCollector(Collector, Generic[State]):
    """Tells the metrics of a table, in its order, in the state of the moment."""

    def __init__(self, table: Sequence[MetricSpec[State]], read_state: Callable[[], State]) -> None:
        self._table = table
        self._read_state = read_state

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance, so that registering asks for no state."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics now; the ones without samples are left out."""
        state = self._read_state()
        families = (spec.family(state) for spec in self._table)
        return (family for family in families if family.samples)


def new_registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of these collectors and of what the system says of the process."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus spells them."""
    buckets: list[tuple[str, float]] = []
    count = 0
    counts = tuple(values.counts)
    for bound, more in zip((*values.bounds, float("inf")), counts, strict=True):
        count += more
        buckets.append((floatToGoString(bound), count))
    return buckets
