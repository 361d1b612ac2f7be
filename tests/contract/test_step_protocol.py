"""The step protocol against two real worker processes: nothing lost, doubled or misapplied.

What is wrong is a table: each row is sent to every rank, answered as the row says, and leaves the
digests of the rank's books and of its keys and values as they were.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from stepwire.v1 import worker_pb2 as pb

from common.codecs import stream_codec
from common.errors import (
    Fenced,
    InvalidStep,
    NeedResync,
    ServiceError,
    StaleStep,
    WrongOrder,
)
from common.rpc.client import invoke
from common.step import (
    ExecutePending,
    IntermediateTensors,
    ModelRunnerOutput,
    SchedulerOutput,
)
from common.worker_api import Authority, DevicePhase, MemoryBudget
from tests.fakes.held_worker import HeldWorker
from tests.fakes.stage_pair import newest_client, stage_pair
from tests.fakes.step_client import (
    ANSWER_SECONDS,
    ClientStream,
    Digests,
    StepClient,
    execute_item,
    new_request,
    sample_item,
    until,
)
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_setup import load_request

NUM_STEPS = 4
"""Steps with tokens before a test sends what it is about: one more than a rank keeps answers of."""

PROMPT_SECONDS = 2.0
"""A call that waits for no other process and no kernel takes less."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of six layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def processes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[HeldWorker]]:
    """Two processes that hold a stage each of the model."""
    with stage_pair(folder, tmp_path_factory.mktemp("holds")) as processes:
        yield processes


@pytest.fixture
async def client(processes: list[HeldWorker]) -> AsyncIterator[StepClient]:
    """The newest coordinator, in its first generation."""
    async with newest_client(processes) as client:
        yield client


async def undisturbed(client: StepClient, num_steps: int) -> tuple[list[int], list[Digests]]:
    """Tokens and digests after so many steps of the plan in a generation where nothing goes wrong."""
    await client.begin()
    await client.run(num_steps)
    tokens, digests = client.tokens, await client.digests()
    await client.begin()
    return tokens, digests


# What is refused: how to make it, at a point where step n was applied last, and the error it gets.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """An item for one rank that must be refused; `is_last` tells which kind that rank is."""

    item: Callable[[StepClient, bool], pb.RunStepsRequest]
    error: type[ServiceError]
    says: str = ""


def next_with(**columns: object) -> Callable[[StepClient, bool], pb.RunStepsRequest]:
    """Step n+1 with something wrong about it: columns, or functions of the client that make them."""

    def item(client: StepClient, is_last: bool) -> pb.RunStepsRequest:  # noqa: FBT001 -- in a table
        right = SchedulerOutput(
            step_id=client.step_id(client.step + 1),
            base_step=client.step,
            cached_requests=client.decode(),
            num_scheduled_tokens=np.ones(1, dtype=np.int32),
        )
        made = {
            name: value(client) if callable(value) else value for name, value in columns.items()
        }
        return execute_item(replace(right, **made), sample=is_last)

    return item


def moved(**fields: int) -> Callable[[StepClient], object]:
    """The id of step n+1 with fields moved."""

    def step_id(client: StepClient) -> object:
        right = client.step_id(client.step + 1)
        return replace(right, **{name: getattr(right, name) + by for name, by in fields.items()})

    return step_id


PAST_BUDGET = new_request(99, range(65), blocks=range(7, 24))

REFUSED = {
    "step n+2 before n+1": Wrong(
        item=next_with(step_id=moved(step=1), base_step=lambda client: client.step + 1),
        error=NeedResync,
        says="planned on step",
    ),
    "step n+2 planned on n": Wrong(
        item=next_with(step_id=moved(step=1)), error=InvalidStep, says="gap"
    ),
    "older than the cache": Wrong(
        item=lambda client, is_last: execute_item(client.planned[1], sample=is_last),
        error=StaleStep,
        says="no longer kept",
    ),
    "lower generation": Wrong(item=next_with(step_id=moved(generation=-1)), error=Fenced),
    "higher generation": Wrong(item=next_with(step_id=moved(generation=1)), error=Fenced),
    "lower epoch": Wrong(item=next_with(step_id=moved(epoch=-1, generation=5)), error=Fenced),
    "higher epoch": Wrong(item=next_with(step_id=moved(epoch=1)), error=Fenced),
    "forged handle": Wrong(
        item=next_with(cached_requests=lambda client: client.decode(handle=999)),
        error=InvalidStep,
        says="handle 999.*not known",
    ),
    "forged finished handle": Wrong(
        item=next_with(finished_handles=np.array([999], dtype=np.uint64)),
        error=InvalidStep,
        says="handle 999 is not known",
    ),
    "block id out of range": Wrong(
        item=next_with(cached_requests=lambda client: client.decode(new_blocks=(32,))),
        error=InvalidStep,
        says="new_block_ids holds 32",
    ),
    "negative count": Wrong(
        item=next_with(num_scheduled_tokens=np.array([-1], dtype=np.int32)),
        error=InvalidStep,
        says="num_scheduled_tokens is -1",
    ),
    "more tokens than the budget": Wrong(
        item=next_with(
            new_requests=(PAST_BUDGET,), num_scheduled_tokens=np.array([65, 1], dtype=np.int32)
        ),
        error=InvalidStep,
        says="max_num_batched_tokens is 64",
    ),
    "sample before execute": Wrong(
        item=lambda client, is_last: sample_item(client.step_id(client.step + 1)),
        error=WrongOrder,
        says="not due",
    ),
    "sample of a step over": Wrong(
        item=lambda client, is_last: sample_item(client.step_id(1)),
        error=StaleStep,
        says="no longer kept",
    ),
}


async def by_stream(stream: ClientStream, worker: UnaryWorker, item: pb.RunStepsRequest) -> object:
    """The answer to an item of a stream."""
    return await stream.ask(item)


async def by_call(stream: ClientStream, worker: UnaryWorker, item: pb.RunStepsRequest) -> object:
    """The answer to the unary call that stands for an item, or its error."""
    try:
        if item.WhichOneof("item") == "sample":
            return await invoke(worker.stub.SampleTokens, item.sample, timeout=ANSWER_SECONDS)
        return await invoke(worker.stub.ExecuteModel, item.execute, timeout=ANSWER_SECONDS)
    except ServiceError as error:
        return error


@pytest.mark.parametrize("way", [by_stream, by_call])
@pytest.mark.parametrize("name", REFUSED)
async def test_refused_step_changes_nothing(client: StepClient, name: str, way: Callable) -> None:
    """Every rank answers the row's error, its digests stay, and the next step gives the right token."""
    wrong = REFUSED[name]
    tokens, _ = await undisturbed(client, NUM_STEPS + 1)
    await client.run(NUM_STEPS)
    before = await client.digests()
    for stage, (stream, worker) in enumerate(zip(client.streams, client.workers, strict=True)):
        item = wrong.item(client, stage == len(client.workers) - 1)
        answer = await way(stream, worker, item)
        assert type(answer) is wrong.error, (stage, answer)
        assert re.search(wrong.says, str(answer))
    assert await client.digests() == before
    await client.run(1)
    assert client.tokens == tokens


async def test_digests_see_what_a_step_changes(client: StepClient) -> None:
    """All ranks keep the same books, each has keys and values of its own, and a step changes all."""
    await client.run(NUM_STEPS)
    before = await client.digests()
    assert before[0].state == before[1].state
    assert before[0].kv != before[1].kv
    await client.run(1)
    after = await client.digests()
    assert all(now.state != then.state for now, then in zip(after, before, strict=True))
    assert all(now.kv != then.kv for now, then in zip(after, before, strict=True))


async def test_execute_twice_without_sampling_changes_nothing(client: StepClient) -> None:
    """While the last rank owes a token, the next step and another one's sample phase are refused."""
    tokens, digests = await undisturbed(client, NUM_STEPS + 1)
    await client.run(NUM_STEPS)
    first, last = client.streams
    output = client.plan()
    early = replace(output, step_id=client.step_id(client.step + 1), base_step=client.step)
    assert isinstance(await first.ask(execute_item(output)), IntermediateTensors)
    assert isinstance(await last.ask(execute_item(output)), ExecutePending)
    for item in (
        execute_item(early),
        execute_item(early, sample=True),
        sample_item(early.step_id),
    ):
        assert isinstance(await last.ask(item), WrongOrder)
    sampled = await last.ask(sample_item(output.step_id))
    assert isinstance(sampled, ModelRunnerOutput)
    assert [*client.tokens, int(sampled.sampled_token_ids.row(0)[0])] == tokens
    assert await client.digests() == digests


# What is sent again.


async def test_computed_step_sent_again_is_answered_again(client: StepClient) -> None:
    """The last W + 1 steps are answered from memory, byte for byte, on every rank."""
    await client.run(NUM_STEPS - 1)
    await client.send(client.plan())
    answers = [await stream.next_answer() for stream in client.streams]
    client.note_token(answers[-1])
    before = await client.digests()
    for _ in range(2):
        await client.send(client.planned[NUM_STEPS])
        assert [await stream.next_answer() for stream in client.streams] == answers
    assert await client.digests() == before


async def test_plain_calls_and_stream_share_the_answers(client: StepClient) -> None:
    """A step run by the stream is answered to the plain calls: the execute phase, and the token."""
    await client.run(NUM_STEPS)
    before = await client.digests()
    output = client.planned[NUM_STEPS]
    request = stream_codec.decode_execute_model(execute_item(output).execute)
    first, last = client.workers
    assert isinstance(await first.execute_model(request), IntermediateTensors)
    assert isinstance(await last.execute_model(request), ExecutePending)
    sampled = await last.sample_tokens(output.step_id)
    assert int(sampled.sampled_token_ids.row(0)[0]) == client.tokens[-1]
    assert await client.digests() == before


async def test_step_sent_again_while_it_computes_is_answered_once_computed(
    client: StepClient, processes: list[HeldWorker]
) -> None:
    """Each rank gets a step twice more while its kernel runs, and gives one answer three times."""
    tokens, digests = await undisturbed(client, NUM_STEPS + 1)
    await client.run(NUM_STEPS)
    output = client.plan()
    for process in processes:
        process.hold(first_step=client.step, end_step=client.step + 1)
    await client.send(output)
    for worker, process, stream, item in zip(
        client.workers, processes, client.streams, client.items(output), strict=True
    ):
        await until(worker, DevicePhase.COMPUTE, step=client.step)
        await stream.send(item, item)
        await invoke(worker.stub.Describe, pb.DescribeRequest(), timeout=PROMPT_SECONDS)
        process.release()
    answers = [[await stream.next_answer() for _ in range(3)] for stream in client.streams]
    assert all(first == second == third for first, second, third in answers)
    client.note_token(answers[-1][0])
    assert client.tokens == tokens
    assert await client.digests() == digests


# Streams.


async def test_newest_stream_wins(client: StepClient, processes: list[HeldWorker]) -> None:
    """A stream opened while a step is unanswered gets its answer when it is sent again there."""
    tokens, digests = await undisturbed(client, NUM_STEPS + 1)
    await client.run(NUM_STEPS)
    output = client.plan()
    processes[0].hold(first_step=client.step, end_step=client.step + 1)
    await client.send(output)
    await until(client.workers[0], DevicePhase.COMPUTE, step=client.step)
    older, client.streams = client.streams, [ClientStream(worker) for worker in client.workers]
    await client.send(output)
    for stream in older:
        code, error = await stream.ending()
        assert code is grpc.StatusCode.ABORTED
        assert "newer step stream" in str(error)
    processes[0].release()
    answers = [await stream.next_answer() for stream in client.streams]
    client.note_token(answers[-1])
    assert client.tokens == tokens
    assert await client.digests() == digests


async def test_idle_stream_ends_nobody(client: StepClient) -> None:
    """A stream takes over with its first step of the generation, and not by being opened."""
    strangers = [ClientStream(worker) for worker in client.workers]
    await client.run(NUM_STEPS)
    former_epoch = client.authority.epoch - 1
    past = replace(client.planned[1], step_id=replace(client.step_id(1), epoch=former_epoch))
    for stream in strangers:
        assert isinstance(await stream.ask(execute_item(past)), Fenced)
    await client.run(1)
    for stream in strangers:
        stream.cancel()


# Coordinators that do not command.


def lower_epoch(client: StepClient) -> Authority:
    """A coordinator that lost the workers."""
    return Authority(coordinator_id="a former one", epoch=client.authority.epoch - 1)


def same_epoch(client: StepClient) -> Authority:
    """A coordinator that chose the same epoch."""
    return Authority(coordinator_id="a twin", epoch=client.authority.epoch)


@pytest.mark.parametrize("other", [lower_epoch, same_epoch])
async def test_other_coordinator_is_fenced(
    client: StepClient, other: Callable[[StepClient], Authority], folder: Path
) -> None:
    """No control call of a lower epoch, or of another coordinator of the same one, changes anything."""
    await client.run(NUM_STEPS)
    before = await client.digests()
    authority, generation = other(client), client.generation
    for stage, worker in enumerate(client.workers):
        begin = replace(client.begin_request(stage), generation=generation + 1)
        for call in (
            worker.init_device(authority),
            worker.load_model(authority, load_request(str(folder), stage=stage, num_stages=2)),
            worker.determine_available_memory(authority, MemoryBudget(kv_cache_bytes=1 << 20)),
            worker.get_kv_cache_spec(authority),
            worker.initialize_kv_cache(authority, 8),
            worker.compile_or_warm_up(authority),
            worker.begin_generation(authority, begin),
            worker.connect_peers(authority, generation, ()),
            worker.end_generation(authority, generation),
        ):
            with pytest.raises(Fenced):
                await call
    assert await client.digests() == before


async def test_generation_that_is_not_newer_is_fenced(client: StepClient) -> None:
    """The same generation again, and an ended one's number, begin nothing and end nothing."""
    await client.begin()
    await client.run(NUM_STEPS)
    before = await client.digests()
    for stage, worker in enumerate(client.workers):
        for generation in (client.generation, client.generation - 1):
            begin = replace(client.begin_request(stage), generation=generation)
            with pytest.raises(Fenced, match="not newer"):
                await worker.begin_generation(client.authority, begin)
        with pytest.raises(Fenced, match="is not this worker's"):
            await worker.end_generation(client.authority, client.generation - 1)
    assert await client.digests() == before
