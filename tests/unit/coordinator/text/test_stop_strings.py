"""Stop strings end a text exactly, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.text.stop_strings import StopStrings


def pushed(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is returned for each piece and at the end, and whether the text was stopped."""
    stop_strings = StopStrings(stops)
    returned: list[str] = []
    for piece in pieces:
        returned.append(stop_strings.push(piece))
        if stop_strings.is_stopped:
            break
    return [*returned, stop_strings.flush()], stop_strings.is_stopped


def cut(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first."""
    matches = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return text[: min(matches)[1]] if matches else text


@given(
    st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab\u00e9", max_size=3), max_size=12),
)
def test_pieces_give_what_the_whole_text_gives(stops: list[str], pieces: list[str]):
    """However the text is cut, the result is the text before the first complete stop string."""
    returned, is_stopped = pushed(stops, pieces)
    text = "".join(pieces)
    assert "".join(returned) == cut(text, stops)
    assert is_stopped == any(stop in text for stop in stops)


def test_a_possible_beginning_is_held_back():
    """The tail that may begin a stop string is returned only when it turns out not to."""
    assert pushed(["END"], ["a E", "N", "Z"]) == (["a ", "", "ENZ", ""], False)


def test_a_stop_string_over_three_pieces_is_not_part_of_the_text():
    """A stop string that spans pieces is removed with what follows it."""
    assert pushed(["END"], ["oneE", "N", "D two"]) == (["one", "", "", ""], True)


def test_what_is_held_at_the_end_is_text():
    """A beginning of a stop string that nothing follows is returned by the flush."""
    assert pushed(["END"], ["to the EN"]) == (["to the ", "EN"], False)


@pytest.mark.parametrize("stops", [["b", "abc"], ["abc", "b"]])
def test_the_stop_string_complete_first_wins(stops: list[str]):
    """A stop string inside a longer one ends the text, in whatever order they were given."""
    assert pushed(stops, ["xabc"]) == (["xa", ""], True)


def test_without_stop_strings_nothing_is_held():
    """Text passes at once when there is nothing to look for."""
    assert pushed([], ["a", "b"]) == (["a", "b", ""], False)


def test_the_stop_string_that_ended_the_text_is_known():
    """Of several stop strings the one that was complete first is named, and none before."""
    stop_strings = StopStrings(["abc", "bc", "x"])
    stop_strings.push("ab")
    assert stop_strings.matched is None
    stop_strings.push("c")
    assert stop_strings.matched == "abc"
