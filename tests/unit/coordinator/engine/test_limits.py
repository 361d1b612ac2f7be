"""The table of limits is what docs/limits.md shows, and its checks name field and limit."""

from pathlib import Path

import pytest

from common.errors import InvalidRequest
from coordinator.engine.limits import check_logit_bias, check_range, limits

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


@pytest.mark.parametrize(("num_entries", "match"), [(10_000, "at most 1024"), (1, "not supported")])
def test_logit_bias_is_refused_by_its_limit_first(num_entries, match):
    """Too many entries are told apart from a feature that is not there."""
    check_logit_bias(0)
    with pytest.raises(InvalidRequest, match=match) as caught:
        check_logit_bias(num_entries)
    assert caught.value.param == "logit_bias"
