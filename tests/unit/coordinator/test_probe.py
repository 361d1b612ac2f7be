"""The texts of probe options become values, or an error that shows what was meant."""

import pytest

from coordinator.probe import parse_duration, parse_header


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        (".5h", 1800.0),
        ("250us", 0.00025),
    ],
)
def test_durations_are_those_of_go(text: str, seconds: float):
    """Numbers with units add up."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1s!", "-1s", "1s 2s"])
def test_other_durations_are_refused(text: str):
    """A number without a unit, or anything else, is no duration."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_header_has_name_and_value():
    """Names are lowered, as HTTP/2 wants them, and a value may hold colons."""
    assert parse_header("X-Token: a:b") == ("x-token", "a:b")


@pytest.mark.parametrize("text", ["token", ": value"])
def test_header_without_a_name_is_refused(text: str):
    """A header is NAME:VALUE."""
    with pytest.raises(ValueError, match="NAME:VALUE"):
        parse_header(text)
