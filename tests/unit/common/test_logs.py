"""Log lines are JSON objects with their context and fields."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from common.logs import bind_log_context, configure_logging, get_logger

logger = get_logger("common.logs_under_test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where a configured process logs to; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    target = io.StringIO()
    configure_logging("worker", level="INFO", stream=target)
    yield target
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    """Text in memory that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    """The logged objects."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_line_an_event(stream):
    """A line names time, level, service, logger, event and the extra fields."""
    logger.info("model loaded", extra={"tensors": 272, "path": object})
    (line,) = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "service": "worker",
        "logger": "common.logs_under_test",
        "event": "model loaded",
        "tensors": 272,
        "path": "<class 'object'>",
    }


def test_floats_have_three_decimals(stream):
    """Seconds are for people: digits beyond a millisecond are dropped."""
    logger.info("model loaded", extra={"seconds": 11.698421396999947})
    assert lines(stream)[0]["seconds"] == 11.698


def test_level(stream):
    """Lines below the level are not written."""
    logger.debug("detail")
    assert lines(stream) == []


async def test_bound_fields_add_up(stream):
    """What is bound later joins what was bound before, and wins where both name a field."""
    bind_log_context(step=1, rank="stage 0")
    bind_log_context(step=2)
    logger.info("bound")
    (line,) = lines(stream)
    assert (line["step"], line["rank"]) == (2, "stage 0")


async def test_context_of_tasks_is_their_own(stream):
    """What a task binds is not seen by its siblings."""

    async def work(name: str) -> None:
        bind_log_context(request_id=name)
        await asyncio.sleep(0)
        logger.info("worked")

    await asyncio.gather(asyncio.create_task(work("a")), asyncio.create_task(work("b")))
    logger.info("after")
    assert [line.get("request_id") for line in lines(stream)] == ["a", "b", None]


def test_exception_stays_on_the_line(stream):
    """A traceback is a field of its line, so that one event is one line."""
    try:
        int("boom")
    except ValueError:
        logger.exception("failed")
    (line,) = lines(stream)
    assert line["event"] == "failed"
    assert "ValueError: invalid literal" in line["exception"]


def test_newlines_and_umlauts(stream):
    """A message of several lines in any script is still one line."""
    logger.info("größer\nals")
    assert [line["event"] for line in lines(stream)] == ["größer\nals"]


async def test_text_is_one_line_for_people(stream):
    """Time, level, service, event and fields with their context, without quotes and braces."""
    configure_logging("worker", stream=stream, spelling="text")
    bind_log_context(request_id="r")
    logger.info("model loaded", extra={"seconds": 1.23456})
    time, _, rest = stream.getvalue().partition(" ")
    assert len(time) == len("12:00:00.000")
    assert rest == "INFO worker: model loaded  request_id=r  seconds=1.235\n"


def test_text_shows_a_traceback(stream):
    """What a bug did stands below its line."""
    configure_logging("worker", stream=stream, spelling="text")
    try:
        int("boom")
    except ValueError:
        logger.exception("failed")
    assert "ERROR worker: failed\nTraceback" in stream.getvalue()


@pytest.mark.parametrize(("target", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_auto_is_text_on_a_terminal_alone(stream, target, is_json):
    """A file or a pipe is read by programs."""
    configure_logging("worker", stream=target, spelling="auto")
    logger.info("started")
    assert target.getvalue().startswith("{") == is_json
