"""What clients are told when the service, not their request, is the reason."""

import asyncio

from common.errors import ServiceError, Unavailable


def as_unavailable(error: BaseException) -> Unavailable:
    """What clients are told: the service is gone for now, and why."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, ServiceError):
        return Unavailable(f"a step failed: {error}")
    if isinstance(error, asyncio.CancelledError):
        return Unavailable("the service has ended")
    return Unavailable(f"the engine loop broke: {error!r}")


def anew(error: Unavailable) -> Unavailable:
    """The same error anew: one exception raised in many tasks would collect all their tracebacks."""
    return type(error)(*error.args)
