"""A worker behind gRPC: `WorkerApi` as calls of the Worker service.

A broken connection is not a lost worker: steps go on over a new stream when the same process is found
again in time, and all that is unanswered fails when it is not. Does not know which rank it is.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerStub

from common.codecs import stream_codec, worker_codec
from common.errors import DeadlineExceeded, ServiceError, WorkerLost, WrongState
from common.rpc.status import service_errors
from common.step import ExecuteResult, GrammarMask, ModelRunnerOutput, SchedulerOutput, StepId
from common.worker_api import (
    Authority,
    BeginGeneration,
    ExecuteModel,
    GenerationReport,
    KVCacheReport,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    Peer,
    WorkerActivity,
    WorkerInfo,
)
from coordinator.executors.connection import WorkerConnection
from coordinator.executors.reconnect import RECONNECT_WINDOW, Membership
from coordinator.executors.step_stream import CallEnd, StepAnswer, StepCall, StepStream

# Seconds. Generous: a slow disk or a cold compiler cache is no reason to give up a worker.
CONNECT_DEADLINE = 300.0
DEVICE_DEADLINE = 300.0
LOAD_DEADLINE = 3600.0
COMPUTE_DEADLINE = 1800.0
GROUP_DEADLINE = 60.0
RELEASE_DEADLINE = 10.0


class RemoteWorker:
    """The worker at an address, HOST:PORT. Must be made inside a running event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connection = WorkerConnection(
            address, describe=self._describe_once, explain=self.find_cause
        )
        self._connection.on_lost(self._fail_stream)
        self._stub = WorkerStub(self._connection.channel)
        self._stream: StepStream | None = None

    async def describe(self) -> WorkerInfo:
        """Ask what the process is, waiting up to CONNECT_DEADLINE seconds for it to be up."""
        try:
            reply = await self._connection.call(
                self._stub.Describe,
                pb.DescribeRequest(),
                deadline=CONNECT_DEADLINE,
                wait_for_ready=True,
            )
        except DeadlineExceeded as error:
            raise WorkerLost(
                f"nobody answered for {CONNECT_DEADLINE:.0f} seconds: start it with "
                "`stepwire worker --listen HOST:PORT` or correct --workers"
            ) from error
        info = worker_codec.decode_worker_info(reply)
        if not self._connection.known.generation:
            self._connection.known = Membership(incarnation=info.incarnation)
        return info

    async def init_device(self, authority: Authority) -> str:
        """Bind the device and return its name."""
        request = pb.InitDeviceRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._connection.call(
            self._stub.InitDevice, request, deadline=DEVICE_DEADLINE
        )
        return reply.device

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read the stage's parameters."""
        spelled = worker_codec.encode_load_model(request, authority=authority)
        reply = await self._connection.call(self._stub.LoadModel, spelled, deadline=LOAD_DEADLINE)
        return worker_codec.decode_load_report(reply)

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        request = worker_codec.encode_memory_budget(budget, authority=authority)
        reply = await self._connection.call(
            self._stub.DetermineAvailableMemory, request, deadline=COMPUTE_DEADLINE
        )
        return worker_codec.decode_memory_report(reply)

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Ask what the KV cache of the stage is made of."""
        request = pb.GetKVCacheSpecRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._connection.call(
            self._stub.GetKVCacheSpec, request, deadline=GROUP_DEADLINE
        )
        return worker_codec.decode_kv_cache_spec(reply)

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate num_blocks blocks, the null block included."""
        request = pb.InitializeKVCacheRequest(
            authority=worker_codec.encode_authority(authority), num_blocks=num_blocks
        )
        reply = await self._connection.call(
            self._stub.InitializeKVCache, request, deadline=DEVICE_DEADLINE
        )
        return worker_codec.decode_kv_cache_report(reply)

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        request = pb.CompileOrWarmUpRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._connection.call(
            self._stub.CompileOrWarmUp, request, deadline=COMPUTE_DEADLINE
        )
        return reply.seconds

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """Join a generation; the step stream of the former one is closed."""
        await self._close_stream()
        spelled = worker_codec.encode_begin_generation(request, authority=authority)
        reply = await self._connection.call(
            self._stub.BeginGeneration, spelled, deadline=GROUP_DEADLINE
        )
        report = worker_codec.decode_generation_report(reply)
        self._connection.known = Membership(
            incarnation=report.incarnation, epoch=authority.epoch, generation=request.generation
        )
        return report

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Open the tensor channels and the step stream, by whose end a loss is noticed."""
        request = worker_codec.encode_peers(peers, generation=generation, authority=authority)
        await self._connection.call(self._stub.ConnectPeers, request, deadline=GROUP_DEADLINE)
        await self._close_stream()
        self._stream = StepStream(
            self._stub.RunSteps(),
            name=self.address,
            decode=_decode_answer,
            replace=self._replace_call,
        )

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Close the step stream and release the worker."""
        await self._close_stream()
        self._connection.known = Membership(incarnation=self._connection.known.incarnation)
        request = pb.EndGenerationRequest(
            authority=worker_codec.encode_authority(authority), generation=generation
        )
        await self._connection.call(self._stub.EndGeneration, request, deadline=RELEASE_DEADLINE)

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase by a unary call."""
        spelled = stream_codec.encode_execute_model(request)
        reply = await self._connection.call(self._stub.ExecuteModel, spelled, deadline=None)
        return stream_codec.decode_execute_result(reply)

    async def sample_tokens(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> ModelRunnerOutput:
        """Run the sample phase by a unary call."""
        request = stream_codec.encode_sample_tokens(step_id, mask)
        reply = await self._connection.call(self._stub.SampleTokens, request, deadline=None)
        return stream_codec.decode_sample_result(reply)

    def submit_step(
        self, output: SchedulerOutput, *, sample: bool, deadline: float | None = None
    ) -> "Future[ExecuteResult]":
        """Queue a step on the stream; fails with WrongState before connect_peers."""
        if self._stream is None:
            return self._refused_step()
        execute = stream_codec.encode_execute_model(
            ExecuteModel(scheduler_output=output, deadline=deadline)
        )
        request = pb.RunStepsRequest(execute=execute, sample_with_execute=sample)
        return self._stream.submit(output.step_id, request)

    def submit_sample(self, step_id: StepId, mask: GrammarMask) -> "Future[ModelRunnerOutput]":
        """Queue a sample phase on the stream; fails with WrongState before connect_peers."""
        if self._stream is None:
            return cast("Future[ModelRunnerOutput]", self._refused_step())
        request = pb.RunStepsRequest(sample=stream_codec.encode_sample_tokens(step_id, mask))
        return cast("Future[ModelRunnerOutput]", self._stream.submit(step_id, request))

    async def watch_status(self, *, interval: float) -> AsyncGenerator[WorkerActivity]:
        """What the worker is doing, also across broken connections; interval in seconds."""
        request = pb.WatchStatusRequest(interval_ms=max(1, round(interval * 1000)))
        async with aclosing(self._connection.watch(self._stub.WatchStatus, request)) as replies:
            async for reply in replies:
                yield worker_codec.decode_activity(reply)

    def on_lost(self, callback: Callable[[ServiceError], None]) -> None:
        """Call back with the error when the worker is lost; at once when it is already."""
        self._connection.on_lost(callback)

    async def close(self) -> None:
        """Close the stream and the channel."""
        self._connection.is_closing = True
        await self._close_stream()
        await self._connection.close()

    async def find_cause(self, seen: str) -> str:
        """Why the worker is gone, given what its connection showed; who knows more overrides it."""
        return seen

    def lose(self, cause: str) -> None:
        """Give the worker up: what is unanswered fails now. Only the first cause counts."""
        self._connection.lose(WorkerLost(cause))

    async def _replace_call(self, end: CallEnd) -> StepCall | None:
        """A new RunSteps call when the same worker is found again; else it is lost."""
        if await self._connection.find_again(end.cause) and end.is_broken:
            return self._stub.RunSteps()
        self.lose(await self.find_cause(end.cause))
        return None

    async def _describe_once(self) -> WorkerInfo:
        with service_errors():
            reply = await self._stub.Describe(pb.DescribeRequest(), timeout=RECONNECT_WINDOW)
        return worker_codec.decode_worker_info(reply)

    def _fail_stream(self, error: ServiceError) -> None:
        if self._stream is not None:
            self._stream.fail(error)

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _refused_step(self) -> "Future[ExecuteResult]":
        refused: Future[ExecuteResult] = asyncio.get_running_loop().create_future()
        error = self._connection.lost_error or WrongState("steps are not legal before ConnectPeers")
        refused.set_exception(error)
        return refused


def _decode_answer(response: pb.RunStepsResponse) -> StepAnswer:
    key, outcome = stream_codec.decode_stream_answer(response)
    return StepAnswer(step_id=key.step_id, outcome=outcome)
