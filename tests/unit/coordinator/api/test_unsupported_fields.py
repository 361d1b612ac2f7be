"""Fields without a model are refused, harmless, or counted, and clients cannot make the counts grow for ever."""

import pytest

from common.errors import InvalidRequest
from coordinator.api.unsupported_fields import (
    MAX_NAME_CHARACTERS,
    MAX_NAMES,
    OTHER_NAMES,
    UnknownFields,
)


@pytest.mark.parametrize("value", [2, [], "x"])
def test_a_field_that_is_not_built_is_refused(value):
    """Whatever it asks for, unless it asks for nothing."""
    fields = UnknownFields()
    fields.check({"best_of": None, "tools": []})
    fields.check({"best_of": 1})
    with pytest.raises(InvalidRequest) as caught:
        fields.check({"best_of": value})
    assert caught.value.param == "best_of"


def test_unknown_fields_are_counted_by_name():
    """Each use counts; bookkeeping of others does not."""
    fields = UnknownFields()
    fields.check({"flavour": 1, "user": "me"})
    fields.check({"flavour": 2})
    assert fields.count_by_name == {"flavour": 2}


def test_names_are_bounded_in_length_and_number():
    """A client that invents names fills one count, and known ones go on counting."""
    fields = UnknownFields()
    fields.check({"x" * (MAX_NAME_CHARACTERS + 1): 1})
    fields.check({f"name{number}": 1 for number in range(2 * MAX_NAMES)})
    fields.check({"name0": 1})
    assert len(fields.count_by_name) == MAX_NAMES
    assert fields.count_by_name["name0"] == 2
    assert fields.count_by_name[OTHER_NAMES] == 2 * MAX_NAMES - (MAX_NAMES - 1) + 1
