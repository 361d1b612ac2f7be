"""Every error has an HTTP status, a code and a body OpenAI clients read."""

import json

import pytest

from common.errors import InvalidRequest
from common.rpc.status import ERROR_BY_NAME
from coordinator.api.problems import service_error_body, service_error_response


@pytest.mark.parametrize("kind", ERROR_BY_NAME.values())
def test_an_error_class_keeps_its_status(kind):
    """The class decides the status; what may be tried again soon says when."""
    response = service_error_response(kind("why"))
    assert response.status_code == kind.http_status
    assert ("retry-after" in response.headers) == (kind.http_status in (429, 503))
    assert json.loads(response.body) == service_error_body(kind("why"))


def test_the_body_names_message_type_param_and_code():
    """All four members stand in the error object."""
    assert service_error_body(InvalidRequest("n is too large", param="n")) == {
        "error": {
            "message": "n is too large",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }


def test_types_follow_the_status():
    """A server's failure is not the client's."""
    types = {
        name: service_error_body(kind("x"))["error"]["type"] for name, kind in ERROR_BY_NAME.items()
    }
    assert types["Overloaded"] == "rate_limit_error"
    assert types["Unavailable"] == types["WorkerLost"] == "service_unavailable_error"
    assert types["StepFailed"] == "server_error"
    assert types["Cancelled"] == "invalid_request_error"
