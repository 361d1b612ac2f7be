"""Errors as HTTP: status, headers and the body OpenAI clients read."""

import re
from typing import Any

from fastapi.responses import JSONResponse

from common.errors import RETRY_AFTER_SECONDS, ServiceError

TYPE_BY_STATUS = {
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
OTHER_CLIENT_ERROR, OTHER_SERVER_ERROR = "invalid_request_error", "server_error"


def problem_body(
    message: str, *, status: int, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The error object; also what stands in a stream when an error comes after its beginning."""
    default = OTHER_CLIENT_ERROR if status < 500 else OTHER_SERVER_ERROR
    kind = TYPE_BY_STATUS.get(status, default)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def problem(
    message: str, *, status: int, code: str | None = None, param: str | None = None
) -> JSONResponse:
    """A whole response; one that may be tried again says when."""
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    body = problem_body(message, status=status, code=code, param=param)
    return JSONResponse(body, status_code=status, headers=headers)


def service_error_body(error: ServiceError) -> dict[str, Any]:
    """The error object of a service error; its code is the class name in snake case."""
    return problem_body(str(error), status=error.http_status, code=_code(error), param=error.param)


def service_error_response(error: ServiceError) -> JSONResponse:
    """The response a service error ends a request with."""
    return problem(str(error), status=error.http_status, code=_code(error), param=error.param)


def _code(error: ServiceError) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
