"""A worker behind gRPC: `WorkerApi` as calls of the Worker service.

Steps are neither retried nor given a deadline; a worker whose process or connection goes fails all
that is unanswered at once. Does not know which rank it is.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from typing import Any

from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerStub

from common.codecs import stream_codec, worker_codec
from common.errors import DeadlineExceeded, Unavailable, WorkerLost, WrongState
from common.rpc.client import connect, invoke
from common.step import ExecuteResult, ModelRunnerOutput, SchedulerOutput, StepId
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
    WorkerInfo,
)
from coordinator.executors.step_stream import StepAnswer, StepStream

# Seconds. Generous: a slow disk or a cold compiler cache is no reason to give up a worker.
CONNECT_DEADLINE = 300.0
DEVICE_DEADLINE = 300.0
LOAD_DEADLINE = 3600.0
COMPUTE_DEADLINE = 1800.0
GROUP_DEADLINE = 60.0
RELEASE_DEADLINE = 10.0

logger = logging.getLogger(__name__)


class RemoteWorker:
    """The worker at an address, HOST:PORT. Must be made inside a running event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = connect(address)
        self._stub = WorkerStub(self._channel)
        self._stream: StepStream | None = None
        self._lost: Future[str] = asyncio.get_running_loop().create_future()
        self._lost_callbacks: list[Callable[[str], None]] = []
        self._is_closing = False

    async def describe(self) -> WorkerInfo:
        """Ask what the process is, waiting up to CONNECT_DEADLINE seconds for it to be up."""
        try:
            reply = await self._call(
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
        return worker_codec.decode_worker_info(reply)

    async def init_device(self, authority: Authority) -> str:
        """Bind the device and return its name."""
        request = pb.InitDeviceRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._call(self._stub.InitDevice, request, deadline=DEVICE_DEADLINE)
        return reply.device

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read the stage's parameters."""
        spelled = worker_codec.encode_load_model(request, authority=authority)
        reply = await self._call(self._stub.LoadModel, spelled, deadline=LOAD_DEADLINE)
        return worker_codec.decode_load_report(reply)

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step once and say what is left for the KV cache."""
        request = worker_codec.encode_memory_budget(budget, authority=authority)
        reply = await self._call(
            self._stub.DetermineAvailableMemory, request, deadline=COMPUTE_DEADLINE
        )
        return worker_codec.decode_memory_report(reply)

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Ask what the KV cache of the stage is made of."""
        request = pb.GetKVCacheSpecRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._call(self._stub.GetKVCacheSpec, request, deadline=GROUP_DEADLINE)
        return worker_codec.decode_kv_cache_spec(reply)

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate num_blocks blocks, the null block included."""
        request = pb.InitializeKVCacheRequest(
            authority=worker_codec.encode_authority(authority), num_blocks=num_blocks
        )
        reply = await self._call(self._stub.InitializeKVCache, request, deadline=DEVICE_DEADLINE)
        return worker_codec.decode_kv_cache_report(reply)

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps and return the seconds they took."""
        request = pb.CompileOrWarmUpRequest(authority=worker_codec.encode_authority(authority))
        reply = await self._call(self._stub.CompileOrWarmUp, request, deadline=COMPUTE_DEADLINE)
        return reply.seconds

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """Join a generation."""
        spelled = worker_codec.encode_begin_generation(request, authority=authority)
        reply = await self._call(self._stub.BeginGeneration, spelled, deadline=GROUP_DEADLINE)
        return worker_codec.decode_generation_report(reply)

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Open the tensor channels and the step stream, by whose end a loss is noticed."""
        request = worker_codec.encode_peers(peers, generation=generation, authority=authority)
        await self._call(self._stub.ConnectPeers, request, deadline=GROUP_DEADLINE)
        self._stream = StepStream(
            self._stub.RunSteps(),
            name=self.address,
            decode=_decode_answer,
            on_end=self._note_stream_end,
        )

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Close the step stream and release the worker."""
        await self._close_stream()
        request = pb.EndGenerationRequest(
            authority=worker_codec.encode_authority(authority), generation=generation
        )
        await self._call(self._stub.EndGeneration, request, deadline=RELEASE_DEADLINE)

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run the execute phase by a unary call."""
        spelled = stream_codec.encode_execute_model(request)
        reply = await self._call(self._stub.ExecuteModel, spelled, deadline=None)
        return stream_codec.decode_execute_result(reply)

    async def sample_tokens(self, step_id: StepId) -> ModelRunnerOutput:
        """Run the sample phase by a unary call."""
        request = stream_codec.encode_sample_tokens(step_id)
        reply = await self._call(self._stub.SampleTokens, request, deadline=None)
        return stream_codec.decode_sample_result(reply)

    def submit_step(self, output: SchedulerOutput, *, sample: bool) -> "Future[ExecuteResult]":
        """Queue a step on the stream; fails with WrongState before connect_peers."""
        if self._stream is None:
            return self._refused_step()
        execute = stream_codec.encode_execute_model(ExecuteModel(scheduler_output=output))
        request = pb.RunStepsRequest(execute=execute, sample_with_execute=sample)
        return self._stream.submit(output.step_id, request)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call back with the cause when the worker is lost; at once when it is already."""
        if self._lost.done():
            callback(self._lost.result())
        else:
            self._lost_callbacks.append(callback)

    async def close(self) -> None:
        """Close the stream and the channel."""
        self._is_closing = True
        await self._close_stream()
        await self._channel.close()

    async def find_cause(self, seen: str) -> str:
        """Why the worker is gone, given what its connection showed; who knows more overrides it."""
        return seen

    def lose(self, cause: str) -> None:
        """Give the worker up: what is unanswered fails now. Only the first cause counts."""
        if self._lost.done() or self._is_closing:
            return
        self._lost.set_result(cause)
        if self._stream is not None:
            self._stream.fail(WorkerLost(cause))
        for callback in self._lost_callbacks:
            callback(cause)

    async def _note_stream_end(self, seen: str) -> None:
        self.lose(await self.find_cause(seen))

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _refused_step(self) -> "Future[ExecuteResult]":
        refused: Future[ExecuteResult] = asyncio.get_running_loop().create_future()
        if self._lost.done():
            refused.set_exception(WorkerLost(self._lost.result()))
        else:
            refused.set_exception(WrongState("steps are not legal before ConnectPeers"))
        return refused

    async def _call(
        self, method: Any, request: Any, *, deadline: float | None, wait_for_ready: bool = False
    ) -> Any:
        """One unary call, ended early by the loss of the worker."""
        call = asyncio.ensure_future(
            self._ask(method, request, timeout=deadline, wait_for_ready=wait_for_ready)
        )
        try:
            await asyncio.wait({call, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise WorkerLost(self._lost.result())
        finally:
            call.cancel()

    async def _ask(self, method: Any, request: Any, **options: Any) -> Any:
        try:
            return await invoke(method, request, **options)
        except Unavailable as error:
            raise WorkerLost(await self.find_cause(f"connection closed: {error}")) from error


def _decode_answer(response: pb.RunStepsResponse) -> StepAnswer:
    key, outcome = stream_codec.decode_stream_answer(response)
    return StepAnswer(step_id=key.step_id, outcome=outcome)
