"""Two pipeline stages in two processes, driven by unary gRPC, against one worker in this process."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from common.channels.channel import InMemoryHub
from common.config import WorkerConfig
from common.errors import WrongOrder
from common.requests import SamplingParams
from common.step import (
    CachedRequests,
    ExecutePending,
    IntermediateTensors,
    ModelRunnerOutput,
    NewRequest,
    Ragged,
    SchedulerOutput,
)
from common.tensors import DType
from common.worker_api import ExecuteModel
from tests.fakes.manual_steps import step_id
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.unary_worker import UnaryWorker
from tests.fakes.worker_process import WorkerProcess, worker_processes
from tests.fakes.worker_setup import join, load_request, warm_up
from worker_service.worker import Worker

HANDLE = 11
PROMPT = (72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100)
FIRST_CHUNK = 7
BLOCK_IDS = tuple(range(1, 9))
HIDDEN_SIZE = 64
NUM_STEPS = 6
SAMPLING = SamplingParams(temperature=0.0, seed=5, num_logprobs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a step answered: the token, if one was drawn, and the log-probabilities beside it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of six layers."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), hidden=HIDDEN_SIZE)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Answered]:
    """What a single worker in this process answers to the same steps."""
    return asyncio.run(single_worker_answers(folder))


@pytest.fixture
def processes() -> Iterator[list[WorkerProcess]]:
    """Two worker processes."""
    with worker_processes(2) as workers:
        yield workers


@asynccontextmanager
async def serving_stages(
    processes: list[WorkerProcess], folder: Path
) -> AsyncIterator[tuple[UnaryWorker, UnaryWorker]]:
    """Connections to two processes that serve the stages of the model."""
    first, last = (UnaryWorker(process.address) for process in processes)
    try:
        await asyncio.gather(
            *(
                warm_up(worker, load_request(str(folder), stage=stage, num_stages=2))
                for stage, worker in enumerate((first, last))
            )
        )
        await join([first, last])
        yield first, last
    finally:
        await first.close()
        await last.close()


def step(number: int, last_token: tuple[int, ...]) -> SchedulerOutput:
    """Steps 1 and 2 compute the prompt in two chunks, each later one the token before it."""
    count = {1: FIRST_CHUNK, 2: len(PROMPT) - FIRST_CHUNK}.get(number, 1)
    common = {
        "step_id": step_id(number),
        "base_step": number - 1,
        "num_scheduled_tokens": np.array([count], dtype=np.int32),
    }
    if number == 1:
        new = NewRequest(
            handle=HANDLE,
            token_ids=np.array(PROMPT, dtype=np.int32),
            num_prompt_tokens=len(PROMPT),
            sampling=SAMPLING,
            block_ids=(np.array(BLOCK_IDS, dtype=np.int32),),
            num_computed_tokens=0,
        )
        return SchedulerOutput(**common, new_requests=(new,))
    computed = FIRST_CHUNK if number == 2 else len(PROMPT) + number - 3
    cached = CachedRequests(
        handles=np.array([HANDLE], dtype=np.uint64),
        num_computed_tokens=np.array([computed], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[]]),),
        new_token_ids=Ragged.from_rows([last_token]),
        token_source_steps=np.zeros(1, dtype=np.uint64),
    )
    return SchedulerOutput(**common, cached_requests=cached)


def answered(output: ModelRunnerOutput) -> Answered:
    """The part of an output that must not depend on the placement."""
    logprobs = () if output.logprobs is None else output.logprobs.logprobs.flatten().tolist()
    return Answered(
        token_ids=tuple(output.sampled_token_ids.values.tolist()), logprobs=tuple(logprobs)
    )


async def single_worker_answers(folder: Path) -> list[Answered]:
    """Run the steps on one worker in this process."""
    worker = Worker(WorkerConfig(device="cpu", threads=1), InMemoryHub().channels("single"))
    try:
        await warm_up(worker, load_request(str(folder)))
        await join([worker])
        answers: list[Answered] = []
        for number in range(1, NUM_STEPS + 1):
            token = answers[-1].token_ids if answers else ()
            result = await worker.submit_step(step(number, token), sample=True)
            assert isinstance(result, ModelRunnerOutput)
            answers.append(answered(result))
        return answers
    finally:
        await worker.close()


def assert_equal(answers: list[Answered], expected: list[Answered]) -> None:
    """The same tokens, and log-probabilities that differ by rounding alone."""
    assert [each.token_ids for each in answers] == [each.token_ids for each in expected]
    for one, other in zip(answers, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_inline_tensors_join_two_stages(
    processes: list[WorkerProcess], folder: Path, expected: list[Answered]
) -> None:
    """Stage 0's inline IntermediateTensors, fed to stage 1, give the output of a single worker."""
    answers: list[Answered] = []
    async with serving_stages(processes, folder) as (first, last):
        for number in range(1, NUM_STEPS + 1):
            output = step(number, answers[-1].token_ids if answers else ())
            handed_on = await first.execute_model(
                ExecuteModel(scheduler_output=output, inline_reply=True)
            )
            assert isinstance(handed_on, IntermediateTensors)
            assert handed_on.inline is not None
            (tensor,) = handed_on.inline
            assert tensor.descriptor.name == "hidden_states"
            assert tensor.descriptor.dtype is DType.FLOAT32
            assert tensor.descriptor.shape == (output.total_num_scheduled_tokens, HIDDEN_SIZE)
            assert tensor.descriptor.checksum == zlib.crc32(tensor.buffer)
            pending = await last.execute_model(
                ExecuteModel(scheduler_output=output, intermediate_tensors=handed_on)
            )
            assert isinstance(pending, ExecutePending)
            answers.append(answered(await last.sample_tokens(output.step_id)))
    assert_equal(answers, expected)
    assert len(answers[0].token_ids) == 0, "a chunk that leaves prompt tokens draws nothing"
    assert all(len(each.token_ids) == 1 for each in answers[1:])


async def test_channel_joins_two_stages(
    processes: list[WorkerProcess], folder: Path, expected: list[Answered]
) -> None:
    """Over ZMQ stage 0 answers descriptors alone, and stage 1's output is that of a single worker."""
    answers: list[Answered] = []
    async with serving_stages(processes, folder) as (first, last):
        for number in range(1, NUM_STEPS + 1):
            output = step(number, answers[-1].token_ids if answers else ())
            handed_on = await first.execute_model(ExecuteModel(scheduler_output=output))
            assert isinstance(handed_on, IntermediateTensors)
            assert handed_on.inline is None
            (descriptor,) = handed_on.descriptors
            assert descriptor.shape == (output.total_num_scheduled_tokens, HIDDEN_SIZE)
            await last.execute_model(ExecuteModel(scheduler_output=output))
            answers.append(answered(await last.sample_tokens(output.step_id)))
    assert_equal(answers, expected)


async def test_wrong_order_changes_nothing(
    processes: list[WorkerProcess], folder: Path, expected: list[Answered]
) -> None:
    """Execute and sample before their time are refused by name; the step goes on as if unasked."""
    async with serving_stages(processes, folder) as (first, last):
        with pytest.raises(WrongOrder):
            await last.sample_tokens(step_id(1))
        token: tuple[int, ...] = ()
        for number in (1, 2):
            output = step(number, token)
            await first.execute_model(ExecuteModel(scheduler_output=output))
            await last.execute_model(ExecuteModel(scheduler_output=output))
            for early in (step(number + 1, token), step(number + 2, token)):
                with pytest.raises(WrongOrder):
                    await last.execute_model(ExecuteModel(scheduler_output=early))
                with pytest.raises(WrongOrder):
                    await last.sample_tokens(early.step_id)
            token = answered(await last.sample_tokens(output.step_id)).token_ids
    assert token == expected[1].token_ids
