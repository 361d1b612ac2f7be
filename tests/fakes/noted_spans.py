"""A tracer that remembers its spans, and trace contexts to begin with."""

from dataclasses import dataclass, field

from common.trace_context import TraceContext
from common.tracing import Attributes

CLIENT = TraceContext(trace_id="4bf92f3577b34da6a3ce929d0e0e4736", span_id="00f067aa0ba902b7")
HEADERS = {"traceparent": CLIENT.traceparent, "tracestate": "vendor=1"}


@dataclass(slots=True, kw_only=True)
class NotedSpan:
    """A span; attributes is None until it has ended."""

    name: str
    parent: TraceContext | None
    is_entry: bool
    context: TraceContext
    attributes: Attributes | None = None
    failure: str | None = None

    def end(self, attributes: Attributes, *, failure: str | None = None) -> None:
        """Note the end, which comes once."""
        assert self.attributes is None, "ended twice"
        self.attributes, self.failure = attributes, failure


@dataclass(slots=True)
class NotedSpans:
    """Every span so far; each is a child of its parent, or the first of a trace of its own."""

    spans: list[NotedSpan] = field(default_factory=list)

    def start(self, name: str, parent: TraceContext | None, *, is_entry: bool = False) -> NotedSpan:
        """Note a span."""
        number = len(self.spans) + 1
        trace_id = f"{number:032x}" if parent is None else parent.trace_id
        context = TraceContext(trace_id=trace_id, span_id=f"{number:016x}")
        self.spans.append(NotedSpan(name=name, parent=parent, is_entry=is_entry, context=context))
        return self.spans[-1]

    def close(self) -> None:
        """Do nothing."""
