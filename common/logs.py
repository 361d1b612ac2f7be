"""Log lines on stderr, one per event, with the request, step or rank they belong to.

They are JSON objects, or text for people.

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
        }
        for name, value in _fields(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time of day (local), level, service, event and fields; a traceback follows on lines of its own."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Spell a record as `12:00:00.000 INFO coordinator: request ended  finish_reason=stop`."""
        time = datetime.fromtimestamp(record.created).astimezone().time()
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        line = f"{time.isoformat(timespec='milliseconds')} {record.levelname} {self._service}: "
        line += f"{record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The context and what came in through `extra`; floats to three decimals."""
    fields = dict(_context.get())
    for name, value in vars(record).items():
        if name not in _STANDARD_ATTRIBUTES:
            fields.setdefault(name, round(value, 3) if isinstance(value, float) else value)
    return fields


def configure_logging(
    service: str, *, level: str = "INFO", stream: TextIO | None = None, spelling: str = "json"
) -> None:
    """Send the process's log lines of at least `level` to `stream` (default: stderr).

    spelling: "json", "text", or "auto", which is text on a terminal.
    """
    target = stream or sys.stderr
    is_text = spelling == "text" or (spelling == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter(service) if is_text else JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
