"""JSON log lines on stderr, one per event, with the request, step or rank they belong to.

Code logs through `logging` with a short event text and its fields in `extra`; only a process's
`__main__` calls `configure_logging`.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default={})  # noqa: B039 - a Mapping, never written

# Attributes of every record; what a record has beyond them came in through `extra`.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def get_logger(name: str) -> logging.Logger:
    """The logger of a module."""
    return logging.getLogger(name)


def bind_log_context(**fields: object) -> None:
    """Add fields to all further lines of this task or thread, until it ends."""
    _context.set({**_context.get(), **fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, service, logger, event, context, extra fields."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Spell a record, floats to three decimals; a value JSON does not know is spelled as text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
            **_context.get(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD_ATTRIBUTES:
                line.setdefault(name, round(value, 3) if isinstance(value, float) else value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(service: str, *, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send the process's log lines of at least `level` to `stream` (default: stderr) as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
