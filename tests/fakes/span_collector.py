"""An OTLP endpoint that keeps the spans it is sent, of whichever process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSpan:
    """A span as it was sent: ids in hexadecimal digits, parent_id empty where there is none."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    failure: str


class SpanCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """`spans` holds all so far; `url` is where they are sent."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[SentSpan] = []

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> Any:
        """Keep what is sent."""
        for group in request.resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_sent(span, resource["service.name"]) for span in scope.spans]
        return pb.ExportTraceServiceResponse()


@contextmanager
def span_collector() -> Iterator[SpanCollector]:
    """A collector that listens on a free port."""
    collector = SpanCollector()
    with ThreadPoolExecutor(max_workers=2) as pool:
        server = grpc.server(pool)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
        collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield collector
        finally:
            server.stop(grace=None).wait()


def _sent(span: Any, service: str) -> SentSpan:
    return SentSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_values(span.attributes),
        failure=span.status.message,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
