"""Spans of requests, for who wants them; by default none, and a trace is only handed on.

What makes spans is optional and stands in `common.otel_tracer`.
"""

from collections.abc import Mapping
from typing import Protocol

from common.errors import ConfigError
from common.trace_context import TraceContext

Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    """A piece of work of a request that is going on."""

    @property
    def context(self) -> TraceContext | None:
        """What the children of this span are told; None when the request has no trace."""
        ...

    def end(self, attributes: Attributes, *, failure: str | None = None) -> None:
        """The work is over, and failed where a failure is named; once."""
        ...


class Tracer(Protocol):
    """Makes the spans of one process."""

    def start(self, name: str, parent: TraceContext | None, *, is_entry: bool = False) -> Span:
        """Begin a span now; is_entry: the service was asked for it from outside."""
        ...

    def close(self) -> None:
        """Send what is not sent yet, for a few seconds at most."""
        ...


class PassingSpan:
    """No span: children belong to the parent itself."""

    def __init__(self, parent: TraceContext | None) -> None:
        self.context = parent

    def end(self, attributes: Attributes, *, failure: str | None = None) -> None:
        """Do nothing."""


class NoTracer:
    """Makes no spans."""

    def start(self, name: str, parent: TraceContext | None, *, is_entry: bool = False) -> Span:
        """Hand the parent on."""
        return PassingSpan(parent)

    def close(self) -> None:
        """Do nothing."""


def make_tracer(endpoint: str | None, *, service: str) -> Tracer:
    """A tracer that sends spans to an OTLP endpoint over gRPC, or one that makes none.

    Raises ConfigError when the extra `otel` is not installed.
    """
    if endpoint is None:
        return NoTracer()
    try:
        from common.otel_tracer import otlp_tracer
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint needs the extra otel: pip install 'stepwire[otel]' ({error})"
        ) from error
    return otlp_tracer(endpoint, service=service)
