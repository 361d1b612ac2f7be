"""A worker driven by unary gRPC calls alone: the plain form, without a step stream."""

from typing import Any

import grpc
from stepwire.v1 import worker_pb2 as pb
from stepwire.v1.worker_pb2_grpc import WorkerStub

from common.codecs import stream_codec, worker_codec
from common.rpc.client import connect, invoke
from common.step import ExecuteResult, GrammarMask, ModelRunnerOutput, StepId
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

CALL_SECONDS = 60.0


class UnaryWorker:
    """The calls of `WorkerApi` that are one RPC each."""

    def __init__(self, address: str) -> None:
        self.channel: grpc.aio.Channel = connect(address)
        self.stub = WorkerStub(self.channel)

    async def describe(self) -> WorkerInfo:
        """Ask what the process is."""
        return worker_codec.decode_worker_info(
            await _call(self.stub.Describe, pb.DescribeRequest())
        )

    async def init_device(self, authority: Authority) -> str:
        """Bind the device."""
        request = pb.InitDeviceRequest(authority=worker_codec.encode_authority(authority))
        return (await _call(self.stub.InitDevice, request)).device

    async def load_model(self, authority: Authority, request: LoadModel) -> LoadReport:
        """Read the stage's parameters."""
        spelled = worker_codec.encode_load_model(request, authority=authority)
        return worker_codec.decode_load_report(await _call(self.stub.LoadModel, spelled))

    async def determine_available_memory(
        self, authority: Authority, budget: MemoryBudget
    ) -> MemoryReport:
        """Run the largest step."""
        spelled = worker_codec.encode_memory_budget(budget, authority=authority)
        reply = await _call(self.stub.DetermineAvailableMemory, spelled)
        return worker_codec.decode_memory_report(reply)

    async def get_kv_cache_spec(self, authority: Authority) -> KVCacheSpec:
        """Ask what the KV cache is made of."""
        request = pb.GetKVCacheSpecRequest(authority=worker_codec.encode_authority(authority))
        return worker_codec.decode_kv_cache_spec(await _call(self.stub.GetKVCacheSpec, request))

    async def initialize_kv_cache(self, authority: Authority, num_blocks: int) -> KVCacheReport:
        """Allocate the KV cache."""
        request = pb.InitializeKVCacheRequest(
            authority=worker_codec.encode_authority(authority), num_blocks=num_blocks
        )
        reply = await _call(self.stub.InitializeKVCache, request)
        return worker_codec.decode_kv_cache_report(reply)

    async def compile_or_warm_up(self, authority: Authority) -> float:
        """Run representative steps."""
        request = pb.CompileOrWarmUpRequest(authority=worker_codec.encode_authority(authority))
        return (await _call(self.stub.CompileOrWarmUp, request)).seconds

    async def begin_generation(
        self, authority: Authority, request: BeginGeneration
    ) -> GenerationReport:
        """Join a generation."""
        spelled = worker_codec.encode_begin_generation(request, authority=authority)
        reply = await _call(self.stub.BeginGeneration, spelled)
        return worker_codec.decode_generation_report(reply)

    async def connect_peers(
        self, authority: Authority, generation: int, peers: tuple[Peer, ...]
    ) -> None:
        """Open the tensor channels."""
        spelled = worker_codec.encode_peers(peers, generation=generation, authority=authority)
        await _call(self.stub.ConnectPeers, spelled)

    async def end_generation(self, authority: Authority, generation: int) -> None:
        """Release the worker."""
        request = pb.EndGenerationRequest(
            authority=worker_codec.encode_authority(authority), generation=generation
        )
        await _call(self.stub.EndGeneration, request)

    async def execute_model(self, request: ExecuteModel) -> ExecuteResult:
        """Run an execute phase."""
        spelled = stream_codec.encode_execute_model(request)
        return stream_codec.decode_execute_result(await _call(self.stub.ExecuteModel, spelled))

    async def sample_tokens(
        self, step_id: StepId, mask: GrammarMask | None = None
    ) -> ModelRunnerOutput:
        """Run a sample phase."""
        spelled = stream_codec.encode_sample_tokens(step_id, mask)
        return stream_codec.decode_sample_result(await _call(self.stub.SampleTokens, spelled))

    async def close(self) -> None:
        """Close the connection."""
        await self.channel.close()


async def _call(method: Any, request: Any) -> Any:
    return await invoke(method, request, timeout=CALL_SECONDS)
