"""The W3C trace context: which trace of whose a request belongs to, as it travels between processes.

https://www.w3.org/TR/trace-context: `traceparent` names trace and span, `tracestate` is handed on
unread. What is malformed is as if it were absent: a trace is never a reason to refuse a request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MAX_STATE_CHARACTERS = 512

_PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<span_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
_STATE = re.compile(r"[\x20-\x7e]*")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A span: its trace as 32 and itself as 16 hexadecimal digits, and the state of its vendors."""

    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The header of this span's children."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def log_fields(self) -> dict[str, str]:
        """What log lines carry, so that they are found from the trace."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}


def parse_trace_context(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The span that two headers name; None when the first one names none."""
    match = _PARENT.fullmatch(traceparent.strip())
    if match is None or not _is_valid(match):
        return None
    state = tracestate.strip()
    if len(state) > MAX_STATE_CHARACTERS or not _STATE.fullmatch(state):
        state = ""
    return TraceContext(
        trace_id=match["trace_id"],
        span_id=match["span_id"],
        flags=int(match["flags"], 16),
        state=state,
    )


def read_trace_context(headers: Mapping[str, str | bytes]) -> TraceContext | None:
    """The span that HTTP headers or gRPC metadata name, by names in small letters."""
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if isinstance(parent, bytes) or isinstance(state, bytes):
        return None
    return parse_trace_context(parent, state)


def log_fields(trace: TraceContext | None) -> dict[str, str]:
    """The fields of log lines, none without a trace."""
    return {} if trace is None else trace.log_fields


def _is_valid(match: re.Match[str]) -> bool:
    """A later version may add to the header; ids of zeros and version ff mean nothing."""
    is_of_ours = match["version"] == "00"
    return (
        match["version"] != "ff"
        and not (is_of_ours and match["rest"])
        and match["trace_id"] != "0" * 32
        and match["span_id"] != "0" * 16
    )
