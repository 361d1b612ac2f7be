"""Reads the JSON body of a request into one of our models; what is wrong with it names the field."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from common.errors import Cancelled, InvalidRequest
from coordinator.engine.limits import MAX_JSON_DEPTH

JSON_TYPE = "application/json"

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body as a value of the model.

    Raises InvalidRequest; while reading RequestTooLarge, or Cancelled when the client leaves.
    """
    content_type = request.headers.get("content-type", JSON_TYPE)
    if JSON_TYPE not in content_type:
        raise InvalidRequest(
            f"the body is {content_type}: send JSON with the header Content-Type: {JSON_TYPE}"
        )
    try:
        raw = await request.body()
    except ClientDisconnect as error:
        raise Cancelled("the client closed the connection within its request") from error
    return parse_body(raw, kind)


def parse_body(raw: bytes, kind: type[Body]) -> Body:
    """The same of bytes."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _complaint(error.errors(include_url=False, include_context=False)) from error


def _complaint(details: list[ErrorDetails]) -> InvalidRequest:
    """Name the first wrong field; a field with several allowed types has a complaint for each."""
    first = details[0]
    if first["type"] == "json_invalid":
        return _not_json(first["msg"])
    if not first["loc"]:
        return InvalidRequest("the body is not a JSON object")
    param = str(first["loc"][0])
    place = _place(first)
    messages = [detail["msg"] for detail in details if _place(detail) == place]
    return InvalidRequest(f"{place}: {' or '.join(dict.fromkeys(messages))}", param=param)


def _place(detail: ErrorDetails) -> str:
    """Where in the body, such as messages[2].content."""
    place = ""
    for step in detail["loc"]:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step == "str" or step.startswith("list["):
            # The type of one alternative; what follows lies within it and not within others.
            break
        else:
            place += f".{step}" if place else step
    return place


def _not_json(complaint: str) -> InvalidRequest:
    if "recursion limit" in complaint:
        return InvalidRequest(
            "the body is nested too deeply: at most "
            f"{MAX_JSON_DEPTH} arrays and objects inside each other are allowed"
        )
    return InvalidRequest(f"the body is not JSON: {complaint}")
