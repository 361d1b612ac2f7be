"""Framing of server-sent events."""

import json

from coordinator.api.event_stream import TextEvents, event


def completion(text: str) -> dict[str, object]:
    """An object with a text in the middle, and quotes and newlines around it."""
    return {"model": 'a "b"', "choices": [{"text": text, "finish_reason": None}], "note": "\n"}


def test_an_event_is_one_line_of_json():
    """Newlines and characters beyond ASCII of the object stand in one line of UTF-8."""
    assert event({"text": "é\n"}) == 'data: {"text":"é\\n"}\n\n'.encode()


def test_events_of_texts_equal_those_written_whole():
    """What is around the text, and how it is escaped, is as if the object was framed as a whole."""
    events = TextEvents(completion)
    for text in ("word", "", '"quoted" \\ line\n', "é \U0001f600", "text"):
        assert events.event(text) == event(completion(text))


def test_a_text_that_is_elsewhere_too_keeps_its_place():
    """The object may hold the text in another field."""
    frame = TextEvents(completion).event('a "b"')
    payload = json.loads(frame.removeprefix(b"data: "))
    assert (payload["model"], payload["choices"][0]["text"]) == ('a "b"', 'a "b"')
