"""The one table between service errors and gRPC statuses.

The class name travels in trailing metadata, so an error arrives as the class that was raised;
without it (another software, or gRPC itself) the status code chooses the class.
"""

from collections.abc import Generator
from contextlib import contextmanager

import grpc
from grpc import StatusCode

from common import errors
from common.errors import RETRY_AFTER_SECONDS, ServiceError

ERROR_CLASS_KEY = "stepwire-error"
ERROR_PARAM_KEY = "stepwire-error-param"
RETRY_KEY = "grpc-retry-pushback-ms"
"""What gRPC clients that retry by themselves wait; others may read it."""
# Bytes. gRPC refuses a response whose metadata, the status message included, passes 8 KiB.
MAX_DETAILS_BYTES = 2048

ERROR_BY_NAME: dict[str, type[ServiceError]] = {
    error.__name__: error
    for error in (
        ServiceError,
        errors.ConfigError,
        errors.InvalidRequest,
        errors.ContextLengthExceeded,
        errors.RequestTooLarge,
        errors.NotFound,
        errors.ModelNotFound,
        errors.Unimplemented,
        errors.AlreadyExists,
        errors.Overloaded,
        errors.Unavailable,
        errors.WorkerLost,
        errors.DeadlineExceeded,
        errors.Cancelled,
        errors.CacheFull,
        errors.ModelError,
        errors.ModelMissing,
        errors.WrongState,
        errors.TensorError,
        errors.StepRefused,
        errors.InvalidStep,
        errors.WrongOrder,
        errors.NeedResync,
        errors.StaleStep,
        errors.Fenced,
        errors.StepFailed,
    )
}

_ERROR_BY_CODE: dict[StatusCode, type[ServiceError]] = {
    StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    StatusCode.NOT_FOUND: errors.NotFound,
    StatusCode.UNIMPLEMENTED: errors.Unimplemented,
    StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    StatusCode.UNAVAILABLE: errors.Unavailable,
    StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    StatusCode.CANCELLED: errors.Cancelled,
    StatusCode.FAILED_PRECONDITION: errors.WrongState,
    StatusCode.DATA_LOSS: errors.TensorError,
    StatusCode.ABORTED: errors.Fenced,
    StatusCode.OUT_OF_RANGE: errors.StaleStep,
}


def to_status(error: ServiceError) -> tuple[StatusCode, str]:
    """The status code and details of an error; details past MAX_DETAILS_BYTES are cut."""
    details = str(error).encode()[:MAX_DETAILS_BYTES].decode(errors="ignore")
    return error.grpc_status, details


def to_metadata(error: ServiceError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata that lets `from_rpc_error` restore the class."""
    metadata = ((ERROR_CLASS_KEY, _wire_name(type(error))),)
    if error.param is not None and error.param.isascii():
        metadata += ((ERROR_PARAM_KEY, error.param),)
    if error.retryable:
        metadata += ((RETRY_KEY, str(RETRY_AFTER_SECONDS * 1000)),)
    return metadata


def _wire_name(error: type[ServiceError]) -> str:
    # A class derived elsewhere travels as the nearest one of the table.
    return next(parent.__name__ for parent in error.__mro__ if parent.__name__ in ERROR_BY_NAME)


def from_rpc_error(error: grpc.RpcError) -> ServiceError:
    """The service error a failed call stands for."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError), "a failed call has a status"
    details = error.details() or f"the call failed with {error.code()}"
    metadata = {key: value for key, value in error.trailing_metadata() or ()}
    name = metadata.get(ERROR_CLASS_KEY)
    kind = ERROR_BY_NAME.get(str(name)) or _ERROR_BY_CODE.get(error.code(), ServiceError)
    arrived, param = kind(details), metadata.get(ERROR_PARAM_KEY)
    if param is not None:
        arrived.param = str(param)
    return arrived


@contextmanager
def service_errors() -> Generator[None]:
    """Raise every gRPC failure inside the block as the service error it stands for."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
