"""gRPC service Worker: decode, call the worker, encode. Errors become statuses in the interceptor."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from stepwire.v1 import worker_pb2 as pb
from stepwire.v1 import worker_pb2_grpc

from common.codecs.stream_codec import (
    decode_execute_model,
    decode_sample_tokens,
    encode_execute_result,
    encode_sample_result,
)
from common.codecs.worker_codec import (
    decode_authority,
    decode_begin_generation,
    decode_load_model,
    decode_memory_budget,
    decode_num_blocks,
    decode_peers,
    encode_activity,
    encode_generation_report,
    encode_kv_cache_report,
    encode_kv_cache_spec,
    encode_load_report,
    encode_memory_report,
    encode_worker_info,
)
from worker_service.step_stream import OpenStreams, StepStream
from worker_service.worker import Worker

# Seconds between two messages of WatchStatus when the client asks for no other interval.
WATCH_INTERVAL_SECONDS = 0.25


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """Every RPC of the service, on one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._streams = OpenStreams()
        worker.on_generation_over(self._streams.end_all)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        """Say what the process is."""
        return encode_worker_info(await self._worker.describe())

    async def InitDevice(
        self, request: pb.InitDeviceRequest, context: Any
    ) -> pb.InitDeviceResponse:
        """Bind the device."""
        device = await self._worker.init_device(decode_authority(request.authority))
        return pb.InitDeviceResponse(device=device)

    async def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> pb.LoadModelResponse:
        """Read this stage's parameters."""
        return encode_load_report(
            await self._worker.load_model(
                decode_authority(request.authority), decode_load_model(request)
            )
        )

    async def DetermineAvailableMemory(
        self, request: pb.DetermineAvailableMemoryRequest, context: Any
    ) -> pb.DetermineAvailableMemoryResponse:
        """Run the largest step once and say what is left."""
        return encode_memory_report(
            await self._worker.determine_available_memory(
                decode_authority(request.authority), decode_memory_budget(request)
            )
        )

    async def GetKVCacheSpec(
        self, request: pb.GetKVCacheSpecRequest, context: Any
    ) -> pb.GetKVCacheSpecResponse:
        """Say what the KV cache is made of."""
        return encode_kv_cache_spec(
            await self._worker.get_kv_cache_spec(decode_authority(request.authority))
        )

    async def InitializeKVCache(
        self, request: pb.InitializeKVCacheRequest, context: Any
    ) -> pb.InitializeKVCacheResponse:
        """Allocate the KV cache."""
        return encode_kv_cache_report(
            await self._worker.initialize_kv_cache(
                decode_authority(request.authority), decode_num_blocks(request)
            )
        )

    async def CompileOrWarmUp(
        self, request: pb.CompileOrWarmUpRequest, context: Any
    ) -> pb.CompileOrWarmUpResponse:
        """Run representative steps."""
        seconds = await self._worker.compile_or_warm_up(decode_authority(request.authority))
        return pb.CompileOrWarmUpResponse(seconds=seconds)

    async def BeginGeneration(
        self, request: pb.BeginGenerationRequest, context: Any
    ) -> pb.BeginGenerationResponse:
        """Start a generation."""
        return encode_generation_report(
            await self._worker.begin_generation(
                decode_authority(request.authority), decode_begin_generation(request)
            )
        )

    async def ConnectPeers(
        self, request: pb.ConnectPeersRequest, context: Any
    ) -> pb.ConnectPeersResponse:
        """Open the tensor channels."""
        await self._worker.connect_peers(
            decode_authority(request.authority), request.generation, decode_peers(request)
        )
        return pb.ConnectPeersResponse()

    async def EndGeneration(
        self, request: pb.EndGenerationRequest, context: Any
    ) -> pb.EndGenerationResponse:
        """Release the worker."""
        await self._worker.end_generation(decode_authority(request.authority), request.generation)
        return pb.EndGenerationResponse()

    async def ExecuteModel(
        self, request: pb.ExecuteModelRequest, context: Any
    ) -> pb.ExecuteModelResponse:
        """Run one execute phase."""
        return encode_execute_result(
            await self._worker.execute_model(decode_execute_model(request))
        )

    async def SampleTokens(
        self, request: pb.SampleTokensRequest, context: Any
    ) -> pb.SampleTokensResponse:
        """Run one sample phase."""
        step_id, mask = decode_sample_tokens(request)
        return encode_sample_result(await self._worker.sample_tokens(step_id, mask))

    async def RunSteps(self, request_iterator: Any, context: Any) -> None:
        """Run phases as they arrive and answer in order, until the client closes the stream."""
        await StepStream(self._worker, context, self._streams).serve()

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Any
    ) -> AsyncGenerator[pb.WatchStatusResponse]:
        """Tell what the worker is doing, until the client leaves."""
        interval = request.interval_ms / 1000 or WATCH_INTERVAL_SECONDS
        async with aclosing(self._worker.watch_status(interval=interval)) as activities:
            async for activity in activities:
                yield encode_activity(activity)
