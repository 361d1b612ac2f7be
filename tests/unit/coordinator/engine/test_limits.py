"""The table of limits is what docs/limits.md shows, and its checks name field and limit."""

from pathlib import Path

import pytest

from common.errors import InvalidRequest
from coordinator.engine.limits import check_range, limits

DOCS = Path(__file__).parents[4] / "docs" / "limits.md"


def test_the_documented_limits_are_the_real_ones():
    """Every row of the table in the docs is one of the code, in its order, and none is missing."""
    cells = [
        line.strip("|").split("|") for line in DOCS.read_text().splitlines() if line[:1] == "|"
    ]
    documented = [(field.strip(" `"), limit.strip()) for field, limit in cells]
    assert documented[:2] == [("field", "limit"), ("---", "---")]
    assert documented[2:] == list(limits())


def test_a_number_outside_its_range_is_told_with_the_range():
    """The message holds the field, its limits and the value."""
    with pytest.raises(InvalidRequest, match="top_p must be greater than 0 and at most 1, not 2"):
        check_range("top_p", 2)
    check_range("top_p", None)
