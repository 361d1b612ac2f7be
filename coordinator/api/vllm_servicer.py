"""The gRPC service `vllm.grpc.engine.VllmEngine`: what gateways for vLLM speak, on our engine.

A gateway tokenizes, renders conversations and makes text of tokens; here tokens go in and out. It
leaves a stream by Abort without ending the call, and ends a call that does not stream without Abort.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from common.clock import Clock
from common.errors import InvalidRequest, NotFound, Unimplemented
from common.rpc.interceptors import trace_of
from common.rpc.server import ProtoFile
from coordinator.api.vllm_answers import encode_chunk, encode_complete
from coordinator.api.vllm_load import GenerationRate, encode_loads
from coordinator.api.vllm_model import (
    ModelFacts,
    encode_model_info,
    read_model_facts,
    tokenizer_chunks,
    zip_tokenizer,
)
from coordinator.api.vllm_requests import decode_generate
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import TextDelta

Context = grpc.aio.ServicerContext[Any, Any]

SERVER_TYPE = "vllm-grpc"
LONGEST_FLUSH_SECONDS = 600.0


class VllmServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Serves whatever engine stands behind the gate."""

    def __init__(
        self,
        gate: EngineGate,
        *,
        read_status: Callable[[], ClusterStatus],
        version: str,
        clock: Clock,
    ) -> None:
        """Answer Unavailable until the gate opens; read_status gives the state now."""
        self._gate = gate
        self._read_status = read_status
        self._version = version
        self._clock = clock
        self._started_at = clock.monotonic()
        self._last_request_at = 0.0
        self._rate = GenerationRate(clock)
        self._facts: ModelFacts | None = None

    def add_to(self, server: grpc.aio.Server) -> ProtoFile:
        """Serve on this server; what reflection is to know of it."""
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)
        return pb.DESCRIPTOR

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Stream the outputs of one request, or give each whole at the end."""
        self._last_request_at = self._clock.unix_time()
        engine = self._gate.engine
        asked = replace(decode_generate(request), trace=trace_of(context))
        stop_token_ids = frozenset(asked.stop_token_ids)
        deltas_by_index: dict[int, list[TextDelta]] = defaultdict(list)
        async with await engine.generate(asked) as outputs:
            async for delta in outputs:
                deltas = [delta]
                if not request.stream:
                    deltas = deltas_by_index[delta.index]
                    deltas.append(delta)
                elif delta.token_ids:
                    yield encode_chunk(delta)
                if delta.finish_reason is not None:
                    yield encode_complete(deltas, stop_token_ids=stop_token_ids)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End requests; those that are not running are ignored."""
        for request_id in request.request_ids:
            self._gate.engine.abort(request_id)
        return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        """Say whether requests are accepted, also while there is no engine yet."""
        if self._gate.is_serving:
            return pb.HealthCheckResponse(healthy=True, message="serving")
        status = self._read_status()
        return pb.HealthCheckResponse(
            healthy=False, message=f"{status.phase.value}: {status.detail}"
        )

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Describe the served model."""
        (model,) = self._gate.engine.models()
        if self._facts is None:
            self._facts = await asyncio.to_thread(read_model_facts, self._folder)
        return encode_model_info(model, self._facts)

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncGenerator[common_pb2.GetTokenizerChunk]:
        """Send the files of the tokenizer, for gateways that do not see the model's folder."""
        for chunk in tokenizer_chunks(await asyncio.to_thread(zip_tokenizer, self._folder)):
            yield chunk

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Describe the server."""
        status = self._read_status()
        return pb.GetServerInfoResponse(
            active_requests=status.num_running + status.num_waiting,
            is_paused=not status.is_serving,
            last_receive_timestamp=self._last_request_at,
            uptime_seconds=self._clock.monotonic() - self._started_at,
            server_type=SERVER_TYPE,
            data_parallel_size=1,
            block_size=status.block_size,
            max_num_seqs=status.max_num_seqs,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Tell how busy the replica is."""
        if request.dp_rank:
            raise NotFound(f"there is no data parallel rank {request.dp_rank}, 0 is the only one")
        status = self._read_status()
        rate = self._rate.update(status.num_generated_tokens)
        return encode_loads(status, rate=rate, version=self._version, clock=self._clock)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """Forget the prefix cache once no request is open; says so when one stays open too long."""
        if not 0 <= request.timeout_s <= LONGEST_FLUSH_SECONDS:
            raise InvalidRequest(
                f"timeout_s must be at least 0 and at most {LONGEST_FLUSH_SECONDS}, "
                f"not {request.timeout_s}",
                param="timeout_s",
            )
        if await self._gate.engine.reset_prefix_cache(request.timeout_s):
            return common_pb2.FlushCacheResponse(success=True, message="the prefix cache is empty")
        return common_pb2.FlushCacheResponse(
            success=False, message="requests are open, the prefix cache is as it was"
        )

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> NoReturn:
        """Refuse: the models served here write text."""
        raise Unimplemented("embeddings are not supported")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> NoReturn:
        """Refuse: there is no profiler here."""
        raise Unimplemented("profiling is not supported")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> NoReturn:
        """Refuse: there is no profiler here."""
        raise Unimplemented("profiling is not supported")

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncGenerator[common_pb2.KvEventBatch]:
        """Refuse: which blocks hold which prefix is not told."""
        raise Unimplemented("events of the KV cache are not supported")
        yield

    @property
    def _folder(self) -> Path:
        return self._gate.model_folder
