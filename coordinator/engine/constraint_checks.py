"""Checks of a constraint's size and shape; whether it can be compiled the compiler says."""

import json

from common.errors import InvalidRequest
from coordinator.engine.field_checks import check_characters
from coordinator.engine.limits import (
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICE_TEXTS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_DEPTH,
    check_count,
    check_length,
)
from coordinator.structured.constraint import Constraint, ConstraintKind

MOST_CHARACTERS = {
    ConstraintKind.JSON_SCHEMA: MAX_SCHEMA_CHARACTERS,
    ConstraintKind.REGEX: MAX_REGEX_CHARACTERS,
    ConstraintKind.GRAMMAR: MAX_GRAMMAR_CHARACTERS,
}


def check_constraint(constraint: Constraint | None) -> None:
    """Raise InvalidRequest naming field and limit."""
    if constraint is None or constraint.kind is ConstraintKind.JSON_OBJECT:
        return
    field = constraint.kind.value
    if constraint.kind is ConstraintKind.CHOICE:
        _check_choices(constraint.choices)
        return
    if not constraint.text:
        raise InvalidRequest(f"{field} is empty", param=field)
    check_length(field, constraint.text, most=MOST_CHARACTERS[constraint.kind])
    check_characters(field, constraint.text)
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        _check_schema(constraint.text)


def _check_choices(texts: tuple[str, ...]) -> None:
    if not texts:
        raise InvalidRequest("choice is empty, at least one text is needed", param="choice")
    check_count("choice", len(texts), most=MAX_CHOICE_TEXTS, things="texts")
    for text in texts:
        if not text:
            raise InvalidRequest("choice holds an empty text", param="choice")
        check_length("choice", text, most=MAX_CHOICE_CHARACTERS)
        check_characters("choice", text)


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"json_schema is not JSON: {error}", param="json_schema") from error
    if not isinstance(schema, dict):
        raise InvalidRequest("json_schema must be an object", param="json_schema")
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise InvalidRequest(
            f"json_schema holds more than {MAX_SCHEMA_DEPTH} arrays and objects inside each other",
            param="json_schema",
        )


def _depth(value: object) -> int:
    """How many arrays and objects stand inside each other; looks no deeper than is allowed."""
    level: list[object] = [value]
    for depth in range(MAX_SCHEMA_DEPTH + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return depth + 1
    return MAX_SCHEMA_DEPTH + 1
