"""A JSON body becomes a value of a model, or an error that names what is wrong with it."""

import json

import pytest
from pydantic import ValidationError

from common.errors import InvalidRequest
from coordinator.api.json_body import parse_body
from coordinator.api.openai_schema import ChatBody, CompletionBody
from coordinator.engine.limits import MAX_JSON_DEPTH


def nested(depth: int) -> bytes:
    """A body of this many arrays and objects inside each other."""
    inside = depth - 1
    return b'{"prompt": "x", "extra": ' + b"[" * inside + b"]" * inside + b"}"


def complaint(raw: bytes) -> InvalidRequest:
    """What is said of a body."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(raw, CompletionBody)
    return caught.value


def test_values_and_unknown_fields_arrive():
    """Declared fields are typed; others are kept aside."""
    body = parse_body(b'{"prompt": ["a", "b"], "n": 2, "flavour": "sweet"}', CompletionBody)
    assert (body.prompt, body.n) == (["a", "b"], 2)
    assert body.fields_without_model() == {"flavour": "sweet"}


def test_a_body_may_be_as_deep_as_documented():
    """Deeper ones are refused with the limit, also where no recursion would survive."""
    assert parse_body(nested(MAX_JSON_DEPTH), CompletionBody).prompt == "x"
    for depth in (MAX_JSON_DEPTH + 5, 100_000):
        assert str(MAX_JSON_DEPTH) in str(complaint(nested(depth)))
    assert str(MAX_JSON_DEPTH) in str(complaint(b"[" * 100_000))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b'{"prompt": ', "not JSON"),
        (b'{"prompt": "\xff"}', "unicode"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b"null", "not a JSON object"),
    ],
)
def test_a_body_that_is_no_object_says_why(raw, words):
    """Broken text, other encodings and other values are told apart."""
    assert words in str(complaint(raw))
    assert complaint(raw).param is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 5),
        ("prompt", ["a", 5]),
        ("n", "two"),
        ("n", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("stop", [1]),
        ("stream_options", []),
    ],
)
def test_a_wrong_type_names_the_field(field, value):
    """The first field that does not fit is named in the message and as param."""
    found = complaint(json.dumps({"prompt": "x"} | {field: value}).encode())
    assert found.param == field
    assert str(found).startswith(f"{field}: Input should be")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("hi", "messages[1]: "),
        ({"role": "user"}, "messages[1].content: Field required"),
        ({"content": "x"}, "messages[1].role: Field required"),
        ({"role": "user", "content": None}, "messages[1].content: Input should be a valid string"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content: "),
    ],
)
def test_a_wrong_message_is_found_among_others(message, place):
    """Which message it is, and which of its fields."""
    raw = json.dumps({"messages": [{"role": "user", "content": "x"}, message]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_body(raw, ChatBody)
    assert str(caught.value).startswith(place)
    assert caught.value.param == "messages"


def test_numbers_that_json_does_not_know_are_the_ranges_to_refuse():
    """NaN and infinity are read, so that the complaint can name their field."""
    body = parse_body(b'{"prompt": "x", "temperature": NaN, "top_p": 1e999}', CompletionBody)
    assert (str(body.temperature), str(body.top_p)) == ("nan", "inf")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1] * 1000 + ["x"] * 1000},
        {"prompt": [["x"] * 1000] * 2},
        {"prompt": "x", "stop": [1] * 1000},
        {"prompt": "x", "stop_token_ids": ["x"] * 1000},
    ],
)
def test_many_wrong_items_are_one_complaint(body):
    """A list is left at its first wrong item: megabytes of complaints would cost gigabytes."""
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 4


@pytest.mark.parametrize("content", [[{}] * 1000, 7])
def test_many_wrong_messages_are_one_complaint(content):
    """The same of messages and their parts."""
    body = {"messages": [{"role": "user", "content": content}] * 1000}
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 4
