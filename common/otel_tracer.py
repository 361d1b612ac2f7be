"""Spans by OpenTelemetry; the one file that imports it."""

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from common.trace_context import TraceContext
from common.tracing import Attributes

LIBRARY = "stepwire"
EXPORT_SECONDS = 2
"""How long a batch of spans is tried to be sent, also while the process ends."""


class OtelTracer:
    """Makes spans and hands them to an exporter from a thread of its own."""

    def __init__(self, exporter: SpanExporter, *, service: str) -> None:
        """service is the name of the process's kind; sampling follows the parent."""
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(LIBRARY)

    def start(
        self, name: str, parent: TraceContext | None, *, is_entry: bool = False
    ) -> "RecordedSpan":
        """Begin a span now."""
        kind = SpanKind.SERVER if is_entry else SpanKind.INTERNAL
        around = None if parent is None else set_span_in_context(_remote(parent))
        return RecordedSpan(self._tracer.start_span(name, context=around, kind=kind))

    def close(self) -> None:
        """Send what waits and end the thread."""
        self._provider.shutdown()


class RecordedSpan:
    """A span that is sent when it ends, unless its trace is not sampled."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext:
        """What the children of this span are told."""
        context = self._span.get_span_context()
        return TraceContext(
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            flags=int(context.trace_flags),
            state=context.trace_state.to_header(),
        )

    def end(self, attributes: Attributes, *, failure: str | None = None) -> None:
        """End now."""
        self._span.set_attributes(dict(attributes))
        if failure is not None:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


def otlp_tracer(endpoint: str, *, service: str) -> OtelTracer:
    """A tracer that sends spans over gRPC, in plaintext to a http:// endpoint."""
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_SECONDS
    )
    return OtelTracer(exporter, service=service)


def _remote(context: TraceContext) -> NonRecordingSpan:
    """A span of another process as a parent."""
    return NonRecordingSpan(
        SpanContext(
            trace_id=int(context.trace_id, 16),
            span_id=int(context.span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(context.flags),
            trace_state=TraceState.from_header([context.state]),
        )
    )
