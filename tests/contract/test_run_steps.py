"""The RunSteps stream on real gRPC: a worker with a scripted runner behind it."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server

from common.channels.channel import InMemoryHub
from common.codecs.stream_codec import (
    decode_stream_answer,
    encode_execute_model,
    encode_sample_tokens,
)
from common.config import WorkerConfig
from common.errors import InvalidStep, NeedResync, StepFailed, WrongOrder
from common.step import (
    ExecutePending,
    ExecuteResult,
    ModelRunnerOutput,
    Phase,
    SchedulerOutput,
    StepKey,
)
from common.worker_api import ExecuteModel
from tests.fakes.manual_steps import cached_step, digest_step, step_id
from tests.fakes.scripted_runner import ScriptedRunner
from tests.fakes.served import served
from tests.fakes.worker_setup import join, load_request, warm_up
from worker_service.servicer import WorkerServicer
from worker_service.worker import Worker

ANSWER_SECONDS = 5.0


class Service:
    """A serving worker, its runner, and a stub of the service in front of it."""

    def __init__(self, worker: Worker, runner: ScriptedRunner, stub: WorkerStub) -> None:
        self.worker = worker
        self.runner = runner
        self.stub = stub


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """One worker in state SERVING behind gRPC."""
    runners: list[ScriptedRunner] = []

    def make_runner(**options: Any) -> ScriptedRunner:
        runners.append(ScriptedRunner(**options))
        return runners[-1]

    worker = Worker(
        WorkerConfig(device="cpu", threads=1),
        InMemoryHub().channels("only"),
        make_runner=make_runner,
    )
    await warm_up(worker, load_request("."))
    await join([worker])
    async with served(
        lambda server: add_WorkerServicer_to_server(WorkerServicer(worker), server)
    ) as channel:
        yield Service(worker, runners[0], WorkerStub(channel))
    await worker.close()


def combined(output: SchedulerOutput) -> pb.RunStepsRequest:
    """A step with its sample phase."""
    execute = encode_execute_model(ExecuteModel(scheduler_output=output))
    return pb.RunStepsRequest(execute=execute, sample_with_execute=True)


def execute_alone(output: SchedulerOutput) -> pb.RunStepsRequest:
    """A step's execute phase."""
    return pb.RunStepsRequest(execute=encode_execute_model(ExecuteModel(scheduler_output=output)))


async def next_answer(call: Any) -> tuple[StepKey, ExecuteResult | Exception]:
    """The next answer of a stream, in time."""
    return decode_stream_answer(await asyncio.wait_for(call.read(), ANSWER_SECONDS))


async def test_steps_are_queued_as_they_arrive(service: Service) -> None:
    """Later steps are queued while the first one runs, and answers come in the order of requests."""
    release, is_running = threading.Event(), threading.Event()

    def hold(step: int) -> None:
        is_running.set()
        assert release.wait(ANSWER_SECONDS)

    service.runner.during_step = hold
    call = service.stub.RunSteps()
    for step in (1, 2, 3):
        await call.write(combined(cached_step(step)))
    assert await asyncio.to_thread(is_running.wait, ANSWER_SECONDS)
    release.set()
    for step in (1, 2, 3):
        key, answer = await next_answer(call)
        assert key == StepKey(step_id=step_id(step), phase=Phase.SAMPLE)
        assert isinstance(answer, ModelRunnerOutput)
        assert answer.sampled_token_ids.row(0).tolist() == [step]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_first_answer_does_not_wait_for_the_second_step(service: Service) -> None:
    """The answer to a step is written before the step behind it is computed."""
    release = threading.Event()

    def hold_second(step: int) -> None:
        assert step == 1 or release.wait(ANSWER_SECONDS)

    service.runner.during_step = hold_second
    call = service.stub.RunSteps()
    for step in (1, 2):
        await call.write(combined(cached_step(step)))
    key, _ = await next_answer(call)
    assert key.step_id.step == 1
    release.set()
    await next_answer(call)
    call.cancel()


async def test_phases_may_come_apart(service: Service) -> None:
    """An execute item alone yields no token; the sample item after it does."""
    call = service.stub.RunSteps()
    await call.write(execute_alone(cached_step(1)))
    await call.write(pb.RunStepsRequest(sample=encode_sample_tokens(step_id(1))))
    _, pending = await next_answer(call)
    assert isinstance(pending, ExecutePending)
    key, sampled = await next_answer(call)
    assert key.phase is Phase.SAMPLE
    assert isinstance(sampled, ModelRunnerOutput)
    call.cancel()


async def test_step_without_tokens_has_no_sample_phase(service: Service) -> None:
    """A combined item without tokens is answered by its execute phase, with the digest asked for."""
    call = service.stub.RunSteps()
    await call.write(combined(digest_step(1)))
    key, answer = await next_answer(call)
    assert key.phase is Phase.EXECUTE
    assert isinstance(answer, ModelRunnerOutput)
    assert answer.state_digest is not None
    call.cancel()


async def test_step_errors_do_not_end_the_stream(service: Service) -> None:
    """Refused and malformed items are answered in their place, and the stream goes on."""
    malformed = combined(cached_step(1))
    malformed.execute.scheduler_output.num_scheduled_tokens = b"abc"
    items_and_errors = [
        (combined(cached_step(2)), NeedResync),
        (malformed, InvalidStep),
        (pb.RunStepsRequest(sample=encode_sample_tokens(step_id(1))), WrongOrder),
    ]
    call = service.stub.RunSteps()
    for item, _ in items_and_errors:
        await call.write(item)
    await call.write(combined(cached_step(1)))
    for _, error in items_and_errors:
        _, answer = await next_answer(call)
        assert type(answer) is error
    _, answer = await next_answer(call)
    assert isinstance(answer, ModelRunnerOutput)
    call.cancel()


async def test_failed_step_names_step_and_cause(service: Service) -> None:
    """A step that fails while it runs is an error item that names step and cause, as are later ones."""

    def fail(step: int) -> None:
        raise RuntimeError("kernel launch failed")

    service.runner.during_step = fail
    call = service.stub.RunSteps()
    for step in (1, 2):
        await call.write(combined(cached_step(step)))
    for step in (1, 2):
        key, answer = await next_answer(call)
        assert key.step_id.step == step
        assert isinstance(answer, StepFailed)
        assert "step 1 failed in its execute phase" in str(answer)
        assert "kernel launch failed" in str(answer)
    call.cancel()


async def test_client_that_leaves_ends_the_stream_quietly(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream cut while a step runs logs no error, and the step runs to its end."""
    release, is_running = threading.Event(), threading.Event()

    def hold(step: int) -> None:
        is_running.set()
        assert release.wait(ANSWER_SECONDS)

    service.runner.during_step = hold
    call = service.stub.RunSteps()
    await call.write(combined(cached_step(1)))
    assert await asyncio.to_thread(is_running.wait, ANSWER_SECONDS)
    with caplog.at_level(logging.WARNING):
        call.cancel()
        release.set()
        successor = service.stub.RunSteps()
        await successor.write(combined(cached_step(2)))
        _, answer = await next_answer(successor)
        successor.cancel()
    assert isinstance(answer, ModelRunnerOutput), "step 1 was applied, so step 2 may follow"
    assert caplog.records == []
