"""A client of the step protocol: two stages in real processes, their streams, and one request's steps.

It writes what a coordinator would, right or wrong, and looks at each rank's answer by itself.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from stepwire.v1 import worker_pb2 as pb

from common.codecs import stream_codec, worker_codec
from common.errors import ServiceError
from common.requests import SamplingParams
from common.rpc.status import from_rpc_error
from common.step import (
    CachedRequests,
    ModelRunnerOutput,
    NewRequest,
    Ragged,
    SchedulerOutput,
    StepId,
)
from common.worker_api import (
    Authority,
    BeginGeneration,
    DevicePhase,
    ExecuteModel,
    Layout,
    Peer,
    Rank,
)
from tests.fakes.unary_worker import UnaryWorker

ANSWER_SECONDS = 20.0
MAX_STEPS_IN_FLIGHT = 2
HANDLE, IDLE_HANDLE = 11, 12
PROMPT = (72, 101, 108, 108, 111, 44, 32, 119)
IDLE_PROMPT = (50, 51, 52)
WATCH_INTERVAL_MS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """What a rank says of its state: the books, and the keys and values."""

    state: bytes | None
    kv: bytes | None


class ClientStream:
    """One RunSteps call."""

    def __init__(self, worker: UnaryWorker) -> None:
        self._call = worker.stub.RunSteps()

    async def send(self, *items: pb.RunStepsRequest) -> None:
        """Write items without waiting for answers."""
        for item in items:
            await self._call.write(item)

    async def next_answer(self) -> pb.RunStepsResponse:
        """The next answer as it stands on the wire."""
        return await asyncio.wait_for(self._call.read(), ANSWER_SECONDS)

    async def ask(self, item: pb.RunStepsRequest) -> Any:
        """Write an item and read its answer: a result, or the error that took its place."""
        await self.send(item)
        return stream_codec.decode_stream_answer(await self.next_answer())[1]

    async def ending(self) -> tuple[grpc.StatusCode, ServiceError]:
        """Read until the server ends the call; its status."""
        try:
            while (await self.next_answer()) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), from_rpc_error(error)
        raise AssertionError("the stream ended without an error")

    def cancel(self) -> None:
        """Leave."""
        self._call.cancel()


def execute_item(output: SchedulerOutput, *, sample: bool = False) -> pb.RunStepsRequest:
    """An execute phase, with `sample` the sample phase behind it."""
    spelled = stream_codec.encode_execute_model(ExecuteModel(scheduler_output=output))
    return pb.RunStepsRequest(execute=spelled, sample_with_execute=sample)


def sample_item(step_id: StepId) -> pb.RunStepsRequest:
    """A sample phase alone."""
    return pb.RunStepsRequest(sample=stream_codec.encode_sample_tokens(step_id))


async def until(worker: UnaryWorker, phase: DevicePhase, *, step: int) -> None:
    """Wait until a worker says that it is in a phase of a step."""
    async with asyncio.timeout(ANSWER_SECONDS):
        call = worker.stub.WatchStatus(pb.WatchStatusRequest(interval_ms=WATCH_INTERVAL_MS))
        async for spelled in call:
            activity = worker_codec.decode_activity(spelled)
            if (activity.phase, activity.step) == (phase, step):
                break
        call.cancel()


class StepClient:
    """Commands workers, in stage order, as the coordinator of one epoch, and plans their steps.

    The first step of the plan computes the prompts of two requests, every later one a token of the
    first; the other one stays alive without being scheduled.
    """

    def __init__(self, workers: Sequence[UnaryWorker], *, epoch: int) -> None:
        self.workers = workers
        self.authority = Authority(coordinator_id=f"coordinator {epoch}", epoch=epoch)
        self.generation = 0
        self.step = 0
        self.tokens: list[int] = []
        self.planned: dict[int, SchedulerOutput] = {}
        self.streams: list[ClientStream] = []

    async def begin(self) -> None:
        """Begin the next generation on every rank, and open its channels and streams."""
        self.leave()
        self.generation, self.step, self.tokens = self.generation + 1, 0, []
        self.planned = {}
        for stage, worker in enumerate(self.workers):
            await worker.begin_generation(self.authority, self.begin_request(stage))
        infos = [await worker.describe() for worker in self.workers]
        peers = tuple(
            Peer(rank=Rank(stage=stage), tensor_endpoint=info.tensor_endpoint)
            for stage, info in enumerate(infos)
        )
        for worker in self.workers:
            await worker.connect_peers(self.authority, self.generation, peers)
        self.streams = [ClientStream(worker) for worker in self.workers]

    def leave(self) -> None:
        """Close the streams, which releases nobody."""
        for stream in self.streams:
            stream.cancel()
        self.streams = []

    def begin_request(self, stage: int) -> BeginGeneration:
        """The generation in hand, at one rank."""
        return BeginGeneration(
            generation=self.generation,
            rank=Rank(stage=stage),
            layout=Layout(num_stages=len(self.workers)),
            max_steps_in_flight=MAX_STEPS_IN_FLIGHT,
        )

    def step_id(self, step: int) -> StepId:
        """A step of the generation in hand."""
        return StepId(epoch=self.authority.epoch, generation=self.generation, step=step)

    def plan(self) -> SchedulerOutput:
        """The next step of the plan: the prompts first, then a token of the first request."""
        is_first = not self.tokens
        return self._next(
            new_requests=(
                new_request(HANDLE, PROMPT, blocks=(1, 2, 3, 4, 5)),
                new_request(IDLE_HANDLE, IDLE_PROMPT, blocks=(6,)),
            )
            if is_first
            else (),
            cached_requests=CachedRequests.none() if is_first else self.decode(),
            num_scheduled_tokens=np.array(
                [len(PROMPT), len(IDLE_PROMPT)] if is_first else [1], dtype=np.int32
            ),
        )

    def decode(self, *, handle: int = HANDLE, new_blocks: Sequence[int] = ()) -> CachedRequests:
        """The row of the first request with the token sampled last, or one that is not quite it."""
        return CachedRequests(
            handles=np.array([handle], dtype=np.uint64),
            num_computed_tokens=np.array([len(PROMPT) + len(self.tokens) - 1], dtype=np.int32),
            new_block_ids=(Ragged.from_rows([list(new_blocks)]),),
            new_token_ids=Ragged.from_rows([self.tokens[-1:]]),
            token_source_steps=np.zeros(1, dtype=np.uint64),
        )

    def plan_empty(self) -> SchedulerOutput:
        """The next step, without tokens, that asks for the digests."""
        return self._next(want_state_digest=True)

    def _next(self, **columns: Any) -> SchedulerOutput:
        self.step += 1
        output = SchedulerOutput(
            step_id=self.step_id(self.step), base_step=self.step - 1, **columns
        )
        self.planned[self.step] = output
        return output

    def items(self, output: SchedulerOutput) -> list[pb.RunStepsRequest]:
        """The item of each rank for a step: the last one's carries the sample phase."""
        last = len(self.workers) - 1
        return [
            execute_item(output, sample=stage == last and output.num_rows > 0)
            for stage in range(len(self.workers))
        ]

    async def send(self, output: SchedulerOutput) -> None:
        """Send a step to every rank."""
        for stream, item in zip(self.streams, self.items(output), strict=True):
            await stream.send(item)

    async def run(self, num_steps: int) -> None:
        """Run so many steps of the plan and keep what was sampled."""
        for _ in range(num_steps):
            await self.send(self.plan())
            answers = [await stream.next_answer() for stream in self.streams]
            self.note_token(answers[-1])

    def note_token(self, answer: pb.RunStepsResponse) -> None:
        """Keep the token that the last rank's answer to a step of the plan holds."""
        output = stream_codec.decode_stream_answer(answer)[1]
        assert isinstance(output, ModelRunnerOutput), output
        assert output.handles[0] == HANDLE
        self.tokens.append(int(output.sampled_token_ids.row(0)[0]))

    async def digests(self) -> list[Digests]:
        """Read every rank's digests, by the next step, which has no tokens."""
        await self.send(self.plan_empty())
        digests: list[Digests] = []
        for stream in self.streams:
            _, answer = stream_codec.decode_stream_answer(await stream.next_answer())
            assert isinstance(answer, ModelRunnerOutput), answer
            digests.append(Digests(state=answer.state_digest, kv=answer.kv_digest))
        return digests


def new_request(handle: int, prompt: Sequence[int], *, blocks: Sequence[int]) -> NewRequest:
    """A greedy request, in full."""
    return NewRequest(
        handle=handle,
        token_ids=np.array(prompt, dtype=np.int32),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(temperature=0.0),
        block_ids=(np.array(blocks, dtype=np.int32),),
        num_computed_tokens=0,
    )
