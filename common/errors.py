"""The tree of service errors: one class per meaning, with its gRPC status, HTTP status and `retryable`.

Raise near the cause, catch at the edge; `common.rpc.status` and `coordinator.api.problems` map the
classes by table and never by text.
"""

from grpc import StatusCode

RETRY_AFTER_SECONDS = 1
"""What a client is told to wait after an error that is `retryable`."""


class ServiceError(Exception):
    """An error with a meaning for the caller; the message is one sentence that says what to do."""

    grpc_status: StatusCode = StatusCode.INTERNAL
    http_status: int = 500
    retryable: bool = False
    param: str | None = None
    """The field of the request that is to blame, where there is one."""


class ConfigError(ServiceError):
    """A flag, variable or file holds a value that cannot work."""

    grpc_status, http_status = StatusCode.INVALID_ARGUMENT, 400


class InvalidRequest(ServiceError):
    """The client asked for something that cannot be served; `param` names the field."""

    grpc_status, http_status = StatusCode.INVALID_ARGUMENT, 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for output in the model's length."""


class RequestTooLarge(InvalidRequest):
    """The request has more bytes than a server reads of one."""

    http_status = 413


class NotFound(ServiceError):
    """The named model or request does not exist."""

    grpc_status, http_status = StatusCode.NOT_FOUND, 404


class ModelNotFound(NotFound):
    """No model of that name is served."""

    param = "model"


class Unimplemented(ServiceError):
    """The protocol has this call, and this service does not answer it."""

    grpc_status, http_status = StatusCode.UNIMPLEMENTED, 501


class AlreadyExists(ServiceError):
    """A request with this id is running."""

    grpc_status, http_status = StatusCode.ALREADY_EXISTS, 409
    param = "request_id"


class Overloaded(ServiceError):
    """The queue is full; the client may try again later."""

    grpc_status, http_status, retryable = StatusCode.RESOURCE_EXHAUSTED, 429, True


class Unavailable(ServiceError):
    """The service drains, starts, or lost a worker."""

    grpc_status, http_status, retryable = StatusCode.UNAVAILABLE, 503, True


class WorkerLost(Unavailable):
    """A rank is gone; the message names rank and cause."""


class DeadlineExceeded(ServiceError):
    """The time the client or the protocol allowed is over."""

    grpc_status, http_status = StatusCode.DEADLINE_EXCEEDED, 504


class Cancelled(ServiceError):
    """The caller no longer wants the result."""

    grpc_status, http_status = StatusCode.CANCELLED, 499


class CacheFull(ServiceError):
    """The block pool has nothing free."""

    grpc_status, http_status, retryable = StatusCode.RESOURCE_EXHAUSTED, 429, True


class ModelError(ServiceError):
    """The checkpoint is missing, unreadable, or not what its configuration says."""

    grpc_status, http_status = StatusCode.FAILED_PRECONDITION, 500


class ModelMissing(ModelError):
    """There is no model at the place it was looked for, yet."""


class WrongState(ServiceError):
    """The call is not legal in the worker's lifecycle state."""

    grpc_status, http_status = StatusCode.FAILED_PRECONDITION, 500


class TensorError(ServiceError):
    """A wire tensor's size, shape, dtype or checksum is wrong."""

    grpc_status, http_status = StatusCode.DATA_LOSS, 500


class StepRefused(ServiceError):
    """A step was not executed and nothing was changed; the subclass says why."""

    grpc_status, http_status = StatusCode.FAILED_PRECONDITION, 500


class InvalidStep(StepRefused):
    """The step is malformed or contradicts the worker's state: a bug of the coordinator."""

    grpc_status = StatusCode.INVALID_ARGUMENT


class WrongOrder(StepRefused):
    """Sample before execute, or execute twice without sampling."""


class NeedResync(StepRefused):
    """`base_step` is not the last step this worker applied."""


class StaleStep(StepRefused):
    """The step is older than the reply cache."""

    grpc_status = StatusCode.OUT_OF_RANGE


class Fenced(StepRefused):
    """A newer epoch or generation commands this worker."""

    grpc_status = StatusCode.ABORTED


class StepFailed(ServiceError):
    """The step failed while it ran; the generation is over."""
