"""What OpenAI's and vLLM's bodies say of an output's form -> the one constraint the engine takes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import InvalidRequest
from coordinator.structured.constraint import Constraint, ConstraintKind

STRUCTURED_KINDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.GRAMMAR,
    "json_object": ConstraintKind.JSON_OBJECT,
}
GUIDED_FIELDS = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
STRUCTURED_OPTIONS = frozenset(
    {
        "disable_any_whitespace",
        "disable_fallback",
        "whitespace_pattern",
        "disable_additional_properties",
    }
)
"""Fields of structured_outputs that say how, not what; each may only ask for nothing."""


def constraint_of(
    *,
    response_format: Mapping[str, Any] | None,
    structured_outputs: Mapping[str, Any] | None,
    guided: Mapping[str, Any],
) -> Constraint | None:
    """The constraint a body asks for; guided: its older fields, by name.

    Raises InvalidRequest naming the field that asks for two, or for what is not known.
    """
    asked = [
        *_of_response_format(response_format),
        *_of_structured_outputs(structured_outputs),
        *(
            (field, _structured(field, kind, guided[field]))
            for field, kind in GUIDED_FIELDS.items()
            if guided.get(field) is not None
        ),
    ]
    if len(asked) > 1:
        fields = " and ".join(field for field, _ in asked)
        raise InvalidRequest(f"{fields} cannot go together", param=asked[1][0])
    return asked[0][1] if asked else None


def constraint_of_arm(arm: str | None, value: str | bool | Sequence[str]) -> Constraint | None:  # noqa: FBT001 - an arm's value
    """The constraint that one arm of a message asks for, by its name; None: no arm is set."""
    match value:
        case _ if arm is None:
            return None
        case bool():
            return Constraint(kind=ConstraintKind(arm)) if value else None
        case str():
            return Constraint(kind=ConstraintKind(arm), text=value)
        case _:
            return Constraint(kind=ConstraintKind(arm), choices=tuple(value))


def _of_response_format(asked: Mapping[str, Any] | None) -> list[tuple[str, Constraint]]:
    field = "response_format"
    kind = None if asked is None else asked.get("type")
    if asked is None or kind == "text":
        return []
    if kind == "json_object":
        return [(field, Constraint(kind=ConstraintKind.JSON_OBJECT))]
    if kind != "json_schema":
        raise InvalidRequest(
            f"{field}: type must be text, json_object or json_schema, not {kind!r:.64}", param=field
        )
    outer = asked.get("json_schema")
    schema = outer.get("schema") if isinstance(outer, dict) else None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(
            f"{field}: json_schema must hold a name and a schema, which is an object", param=field
        )
    return [(field, Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(schema)))]


def _of_structured_outputs(asked: Mapping[str, Any] | None) -> list[tuple[str, Constraint]]:
    field = "structured_outputs"
    given = {name: value for name, value in (asked or {}).items() if value not in (None, False)}
    unknown = given.keys() - STRUCTURED_KINDS.keys()
    if unknown:
        raise InvalidRequest(f"{field}: {min(unknown)} is not supported", param=field)
    if len(given) > 1:
        raise InvalidRequest(f"{field}: {' and '.join(given)} cannot go together", param=field)
    return [(field, _structured(field, kind, value)) for kind, value in given.items()]


def _structured(field: str, kind: str, value: Any) -> Constraint:
    known = STRUCTURED_KINDS[kind]
    match known:
        case ConstraintKind.JSON_SCHEMA if isinstance(value, dict | str):
            text = value if isinstance(value, str) else json.dumps(value)
            return Constraint(kind=known, text=text)
        case ConstraintKind.REGEX | ConstraintKind.GRAMMAR if isinstance(value, str):
            return Constraint(kind=known, text=value)
        case ConstraintKind.CHOICE if _are_texts(value):
            return Constraint(kind=known, choices=tuple(value))
        case ConstraintKind.JSON_OBJECT if value is True:
            return Constraint(kind=known)
        case _:
            raise InvalidRequest(
                f"{field}: {kind} cannot be a {type(value).__name__} like this", param=field
            )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
