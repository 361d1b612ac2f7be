"""Every service error survives gRPC: the class, the message and the status arrive."""

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.codecs.result_codec import decode_step_error, encode_step_error
from common.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    Overloaded,
    ServiceError,
    StepFailed,
    StepRefused,
    Unavailable,
)
from common.rpc.client import connect, invoke
from common.rpc.status import ERROR_BY_NAME, MAX_DETAILS_BYTES, service_errors
from common.step import Phase, StepId, StepKey
from tests.fakes.served import served


def all_errors(root: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    """The whole tree of `common/errors.py`; classes that tests derive are not part of it."""
    if root.__module__ == "common.errors":
        yield root
        for child in root.__subclasses__():
            yield from all_errors(child)


class FailingHealth(health_pb2_grpc.HealthServicer):
    """Fails every call with a given exception, Watch after one response."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register on a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(self, request, context):
        """Fail."""
        raise self.error

    async def Watch(self, request, context):
        """Answer once, then fail."""
        yield health_pb2.HealthCheckResponse()
        raise self.error


async def check_of(error: Exception) -> ServiceError:
    """What a client sees of a unary call that failed with `error`."""
    async with served(FailingHealth(error).add_to) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(ServiceError) as caught:
            await invoke(stub.Check, health_pb2.HealthCheckRequest(), timeout=5)
        return caught.value


def test_table_names_every_class():
    """The table of the wire holds the whole error tree and nothing else."""
    assert set(ERROR_BY_NAME.values()) == set(all_errors())
    assert all(kind.__name__ == name for name, kind in ERROR_BY_NAME.items())


@pytest.mark.parametrize("kind", sorted(all_errors(), key=lambda kind: kind.__name__))
async def test_class_and_message_survive(kind):
    """A handler's error arrives as its own class with its message, and with its status code."""
    arrived = await check_of(kind("stage 1 said: größer"))
    assert type(arrived) is kind
    assert str(arrived) == "stage 1 said: größer"
    assert arrived.__cause__.code() is kind.grpc_status


async def test_param_survives():
    """The field an error names arrives, whatever its class."""
    arrived = await check_of(InvalidRequest("top_p must be in (0, 1]", param="top_p"))
    assert isinstance(arrived, InvalidRequest)
    assert arrived.param == "top_p"
    assert (await check_of(ContextLengthExceeded("long", param="messages"))).param == "messages"
    assert (await check_of(ModelNotFound("huge"))).param == "model"


async def test_what_may_be_tried_again_says_when():
    """Retryable errors carry gRPC's own hint, in milliseconds, and others do not."""

    async def hint_of(error: ServiceError) -> object:
        metadata = (await check_of(error)).__cause__.trailing_metadata()
        return dict(metadata).get("grpc-retry-pushback-ms")

    assert await hint_of(Overloaded("full")) == await hint_of(Unavailable("starting")) == "1000"
    assert await hint_of(NotFound("gone")) is None


@pytest.mark.parametrize("raw", [b"\x0a\x02\xff\xfe", b"\x0a\x82"], ids=["no UTF-8", "cut off"])
@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_bytes_that_are_no_message_are_the_clients_mistake(method, raw):
    """Text that is not UTF-8 and bytes cut off are INVALID_ARGUMENT, and no handler sees them."""
    async with served(FailingHealth(NotFound("handled")).add_to) as channel:
        path = f"/grpc.health.v1.Health/{method}"
        if method == "Check":
            answer = channel.unary_unary(path)(raw)
        else:
            answer = channel.unary_stream(path)(raw).read()
        with pytest.raises(InvalidRequest, match="UTF-8"), service_errors():
            await answer


async def test_error_inside_a_stream():
    """A response stream that fails later delivers what came before, then the error."""
    async with served(FailingHealth(NotFound("gone")).add_to) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        responses: list[object] = []

        async def read_all() -> None:
            async for response in call:
                responses.append(response)

        with pytest.raises(NotFound, match="gone"), service_errors():
            await read_all()
    assert responses == [health_pb2.HealthCheckResponse()]


async def test_bug_becomes_internal():
    """An exception that is no service error arrives as INTERNAL and names its class."""
    arrived = await check_of(ZeroDivisionError("oops"))
    assert type(arrived) is ServiceError
    assert arrived.__cause__.code() is grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" in str(arrived)


async def test_long_message_is_cut():
    """A message too long for gRPC metadata is cut and does not hide the class."""
    arrived = await check_of(Unavailable("ü" * 100_000))
    assert type(arrived) is Unavailable
    assert len(str(arrived).encode()) <= MAX_DETAILS_BYTES


async def test_derived_class_travels_as_its_parent():
    """A class derived outside the tree arrives as the nearest class of the tree."""

    class Special(Unavailable):
        """Not in the table."""

    assert type(await check_of(Special("busy"))) is Unavailable


async def test_foreign_status_chooses_class():
    """A status without our metadata, here gRPC's own for a missing peer, chooses the class by code."""
    channel = connect("unix-abstract:nobody-listens-here")
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(ServiceError) as refused:
        await invoke(stub.Check, health_pb2.HealthCheckRequest(), timeout=5)
    assert type(refused.value) is Unavailable
    with pytest.raises(DeadlineExceeded):
        await invoke(stub.Check, health_pb2.HealthCheckRequest(), timeout=0.05, wait_for_ready=True)
    await channel.close()


@pytest.mark.parametrize("kind", sorted(all_errors(), key=lambda kind: kind.__name__))
def test_step_error_keeps_refusals(kind):
    """In the step stream each refusal keeps its class; whatever else failed is StepFailed."""
    key = StepKey(step_id=StepId(epoch=1, generation=1, step=1), phase=Phase.EXECUTE)
    arrived = decode_step_error(encode_step_error(kind("why"), key))
    is_refusal = issubclass(kind, StepRefused) and kind is not StepRefused
    assert type(arrived) is (kind if is_refusal else StepFailed)
    assert str(arrived) == "why"
