"""Facts of a table of metrics: how each kind is spelled, and that it is read when asked."""

from prometheus_client import CollectorRegistry, generate_latest

from common.call_times import CALL_METRICS, CallTimes
from common.distribution import Distribution
from common.metrics import MetricKind, MetricSpec, TableCollector, new_registry


def spelled(table, state) -> str:
    """The text Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(TableCollector(table, lambda: state))
    return generate_latest(registry).decode()


def test_each_kind_is_spelled_as_prometheus_wants_it():
    """A counter gets "_total", a histogram cumulative buckets up to infinity, count and sum."""
    seconds = Distribution((0.5, 2.0))
    for value in (0.25, 1.0, 1.0, 8.0):
        seconds.add(value)
    table = (
        MetricSpec(name="x", kind=MetricKind.COUNTER, help="X.", read=lambda s: {(): 3.0}),
        MetricSpec(
            name="y", kind=MetricKind.GAUGE, help="Y.", labels=("a",), read=lambda s: {("b",): 0.5}
        ),
        MetricSpec(name="z", kind=MetricKind.HISTOGRAM, help="Z.", read=lambda s: {(): seconds}),
    )
    assert spelled(table, None).splitlines() == [
        "# HELP x_total X.",
        "# TYPE x_total counter",
        "x_total 3.0",
        "# HELP y Y.",
        "# TYPE y gauge",
        'y{a="b"} 0.5',
        "# HELP z Z.",
        "# TYPE z histogram",
        'z_bucket{le="0.5"} 1.0',
        'z_bucket{le="2.0"} 3.0',
        'z_bucket{le="+Inf"} 4.0',
        "z_count 4.0",
        "z_sum 10.25",
    ]
    assert [name for spec in table for name in spec.exposed_names] == [
        "x_total",
        "y",
        "z_bucket",
        "z_count",
        "z_sum",
    ]


def test_a_metric_without_samples_is_left_out():
    """What has no value now has no line, not even its name."""
    table = (MetricSpec(name="x", kind=MetricKind.GAUGE, help="X.", read=lambda s: {}),)
    assert spelled(table, None) == ""


def test_values_are_read_when_asked_for():
    """Registering reads nothing, and every question reads anew."""
    reads: list[int] = []

    def read_state() -> int:
        reads.append(1)
        return len(reads)

    table = (MetricSpec(name="x", kind=MetricKind.GAUGE, help="X.", read=lambda s: {(): s}),)
    registry = CollectorRegistry()
    registry.register(TableCollector(table, read_state))
    assert not reads
    texts = [generate_latest(registry).decode().splitlines()[-1] for _ in range(2)]
    assert texts == ["x 1.0", "x 2.0"]


def test_a_registry_tells_of_its_process():
    """Memory and CPU time of the process stand beside what is registered."""
    names = {family.name for family in new_registry().collect()}
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= names


def test_calls_are_counted_by_method_and_outcome():
    """Each pair has a distribution of its own."""
    times = CallTimes()
    times.note("pkg.S/M", outcome="OK", seconds=0.003)
    times.note("pkg.S/M", outcome="OK", seconds=0.2)
    times.note("pkg.S/M", outcome="INVALID_ARGUMENT", seconds=0.001)
    text = spelled(CALL_METRICS, times)
    assert 'stepwire_rpc_seconds_count{method="pkg.S/M",outcome="OK"} 2.0' in text
    assert 'stepwire_rpc_seconds_sum{method="pkg.S/M",outcome="OK"} 0.203' in text
    assert 'stepwire_rpc_seconds_count{method="pkg.S/M",outcome="INVALID_ARGUMENT"} 1.0' in text
