"""How long the calls a server answers take, by method and outcome."""

from common.distribution import Distribution
from common.metrics import CALL_SECONDS, MetricKind, MetricSpec


class CallTimes:
    """The calls of one server; written and read on its event loop."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, ...], Distribution] = {}
        """By method and outcome, the name of a gRPC status."""

    def note(self, method: str, *, outcome: str, seconds: float) -> None:
        """Count a call that has ended."""
        key = (method, outcome)
        if key not in self.seconds:
            self.seconds[key] = Distribution(CALL_SECONDS)
        self.seconds[key].add(seconds)


CALL_METRICS: tuple[MetricSpec[CallTimes], ...] = (
    MetricSpec(
        name="stepwire_rpc_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds of gRPC calls that were answered, to their end; streams live long.",
        labels=("method", "outcome"),
        read=lambda times: times.seconds,
    ),
)
