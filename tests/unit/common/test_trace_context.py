"""Facts of the W3C trace context: what names a span, and what is as if it were absent."""

import pytest

from common.trace_context import (
    MAX_STATE_CHARACTERS,
    TraceContext,
    log_fields,
    parse_trace_context,
    read_trace_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_headers_name_a_span_and_its_state():
    """The example of the recommendation; what is written is what was read."""
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "congo=t61rcWkgMzE"}
    context = read_trace_context(headers)
    assert context == TraceContext(trace_id=TRACE, span_id=SPAN, flags=1, state="congo=t61rcWkgMzE")
    assert context.traceparent == headers["traceparent"]
    assert log_fields(context) == {"trace_id": TRACE, "span_id": SPAN}


def test_a_trace_that_is_not_sampled_stays_so():
    """The flags are handed on."""
    context = parse_trace_context(f"00-{TRACE}-{SPAN}-00")
    assert context is not None
    assert context.traceparent.endswith("-00")


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "hello",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01" + "x" * 10_000,
    ],
)
def test_a_malformed_parent_is_as_if_it_were_absent(traceparent):
    """Also where a state stands beside it."""
    assert read_trace_context({"traceparent": traceparent, "tracestate": "a=b"}) is None


def test_a_later_version_is_read_as_far_as_it_is_known():
    """What it adds behind the flags is left out."""
    context = parse_trace_context(f"01-{TRACE}-{SPAN}-01-extra")
    assert context is not None
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("state", ["a=" + "b" * MAX_STATE_CHARACTERS, "a=\nb", "a=\u00e9"])
def test_a_state_that_cannot_be_handed_on_is_dropped(state):
    """The span stays."""
    context = parse_trace_context(f"00-{TRACE}-{SPAN}-01", state)
    assert context is not None
    assert context.state == ""


def test_no_trace_has_no_fields():
    """Log lines of other requests carry nothing."""
    assert log_fields(read_trace_context({})) == {}
