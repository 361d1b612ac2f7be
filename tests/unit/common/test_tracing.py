"""Facts of spans: none by default, and OpenTelemetry's where an exporter is given."""

import subprocess
import sys
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from common.config import ServeConfig, WorkerConfig
from common.errors import ConfigError
from common.otel_tracer import OtelTracer
from common.tracing import NoTracer, make_tracer
from tests.fakes.noted_spans import CLIENT

WITHOUT_OTEL = """
import sys
sys.modules["opentelemetry"] = None
from common.errors import ConfigError
from common.tracing import make_tracer
assert make_tracer(None, service="x") is not None
try:
    make_tracer("http://localhost:4317", service="x")
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("parent", [None, CLIENT])
def test_without_a_tracer_children_belong_to_the_parent(parent):
    """A trace is handed on as it is, and ending a span that is none does nothing."""
    span = make_tracer(None, service="x").start("work", parent)
    assert span.context is parent
    span.end({"a": 1}, failure="no")
    assert isinstance(make_tracer(None, service="x"), NoTracer)


def test_a_missing_extra_is_named():
    """Whoever asks for spans without the libraries is told what to install."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTEL], capture_output=True, text=True, check=True
    )
    assert "pip install 'stepwire[otel]'" in run.stdout


@pytest.mark.parametrize("kind", [ServeConfig, WorkerConfig])
def test_an_endpoint_is_a_url(kind):
    """Anything else is refused by name."""
    with pytest.raises(ConfigError, match="otlp_traces_endpoint must be a URL"):
        kind(otlp_traces_endpoint="collector:4317")


def test_a_span_has_its_parent_and_what_it_ends_with():
    """Trace, parent, kind, state, attributes; the service is named on all of them."""
    exporter = InMemorySpanExporter()
    tracer = OtelTracer(exporter, service="stepwire-test")
    outer = tracer.start("outer", replace(CLIENT, state="vendor=1"), is_entry=True)
    inner = tracer.start("inner", outer.context)
    inner.end({"stepwire.rank": "stage 1"}, failure="broken")
    outer.end({"tokens": 3})
    tracer.close()
    told_inner, told_outer = exporter.get_finished_spans()
    assert f"{told_outer.context.trace_id:032x}" == CLIENT.trace_id
    assert f"{told_outer.parent.span_id:016x}" == CLIENT.span_id
    assert told_inner.parent.span_id == told_outer.context.span_id
    assert inner.context.state == "vendor=1"
    assert (told_outer.kind, told_inner.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert told_outer.attributes["tokens"] == 3
    assert (told_inner.status.status_code, told_inner.status.description) == (
        StatusCode.ERROR,
        "broken",
    )
    assert told_outer.resource.attributes["service.name"] == "stepwire-test"


def test_a_trace_that_is_not_sampled_is_handed_on_and_not_sent():
    """The client decides."""
    exporter = InMemorySpanExporter()
    tracer = OtelTracer(exporter, service="stepwire-test")
    span = tracer.start("work", replace(CLIENT, flags=0))
    assert (span.context.trace_id, span.context.flags) == (CLIENT.trace_id, 0)
    span.end({})
    tracer.close()
    assert exporter.get_finished_spans() == ()


def test_a_request_without_a_trace_begins_one():
    """The first span of a trace has no parent."""
    exporter = InMemorySpanExporter()
    tracer = OtelTracer(exporter, service="stepwire-test")
    tracer.start("work", None).end({})
    tracer.close()
    (told,) = exporter.get_finished_spans()
    assert told.parent is None


def test_a_collector_that_is_not_there_is_no_error():
    """Spans are lost, and nobody hears of it but the log."""
    tracer = make_tracer("http://127.0.0.1:9", service="stepwire-test")
    tracer.start("work", CLIENT).end({})
    tracer.close()
