"""Gateways for vLLM get tokens, ends and errors from our engine as from theirs."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2
from tokenizers import Tokenizer as TokenizerFile

from common.errors import Overloaded, Unavailable
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from coordinator.api.vllm_servicer import VllmServicer
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.engine import Engine
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import ServedModel
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer
from tests.fakes.manual_clock import ManualClock
from tests.fakes.scripted_loop import ScriptedLoop, deltas
from tests.fakes.served import served
from tests.fakes.tiny_checkpoint import write_tiny_llama

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=5)
STATUS = ClusterStatus(
    model="tiny",
    is_serving=True,
    num_waiting=3,
    num_running=2,
    num_blocks=40,
    num_free_blocks=30,
    num_prompt_tokens=80,
    num_cached_tokens=20,
    num_generated_tokens=100,
    block_size=16,
    max_num_seqs=8,
    num_waiting_tokens=77,
)


class Served:
    """A servicer on a scripted loop, and its client."""

    def __init__(self, channel: grpc.aio.Channel, loop: ScriptedLoop, clock: ManualClock) -> None:
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        self.loop = loop
        self.clock = clock
        self.status = STATUS

    def call(self, *, stream: bool = True, **params):
        """Begin a call of Generate with one token."""
        return self.stub.Generate(
            pb.GenerateRequest(
                request_id="a",
                tokenized=pb.TokenizedInput(input_ids=[7]),
                sampling_params=pb.SamplingParams(**params),
                stream=stream,
            )
        )

    async def generate(self, *, stream: bool = True, **params) -> list[pb.GenerateResponse]:
        """All responses of a call."""
        return [response async for response in self.call(stream=stream, **params)]


@asynccontextmanager
async def vllm(
    loop: ScriptedLoop, *, folder: Path | None = None, is_open: bool = True
) -> AsyncIterator[Served]:
    """Serve the loop over gRPC."""
    gate, clock = EngineGate(), ManualClock()
    tokenizer = Tokenizer(byte_tokenizer(), template=None)
    if is_open:
        gate.open(Engine(model=MODEL, tokenizer=tokenizer, loop=loop), model_folder=folder)
    servicer = VllmServicer(gate, read_status=lambda: made.status, version="1.2", clock=clock)
    async with served(servicer.add_to) as channel:
        made = Served(channel, loop, clock)
        yield made


def chunk(*token_ids: int, index: int = 0, **fields) -> pb.GenerateResponse:
    """A chunk of a request with one prompt token."""
    made = pb.GenerateStreamChunk(index=index, token_ids=token_ids, prompt_tokens=1, **fields)
    made.completion_tokens = len(token_ids)
    return pb.GenerateResponse(chunk=made)


def complete(*token_ids: int, index: int = 0, **fields) -> pb.GenerateResponse:
    """The end of a request with one prompt token."""
    made = pb.GenerateComplete(index=index, output_ids=token_ids, prompt_tokens=1, **fields)
    made.completion_tokens = len(token_ids)
    return pb.GenerateResponse(complete=made)


async def test_a_stream_brings_deltas_and_its_end():
    """New tokens come in chunks; the completion repeats the last of them, with the reason."""
    script = [TokenDelta(token_ids=(1,)), TokenDelta(token_ids=(2, 3), num_cached_tokens=4)]
    script.append(TokenDelta(token_ids=(5,), finish_reason=FinishReason.LENGTH))
    async with vllm(ScriptedLoop(script)) as served_vllm:
        responses = await served_vllm.generate()
    assert responses == [
        chunk(1),
        chunk(2, 3, cached_tokens=4),
        chunk(5),
        complete(5, finish_reason="length"),
    ]


async def test_without_a_stream_the_end_brings_all():
    """A request that does not stream gets one response with every token."""
    script = deltas("ab", "c", finish=FinishReason.ABORT)
    async with vllm(ScriptedLoop(script)) as served_vllm:
        responses = await served_vllm.generate(stream=False)
    assert responses == [complete(*b"abc", finish_reason="abort")]


@pytest.mark.parametrize("stream", [True, False])
async def test_several_outputs_are_told_apart(stream):
    """Each of n outputs has its own chunks and its own end, and draws with a seed of its own."""
    async with vllm(ScriptedLoop(deltas("a", "b"))) as served_vllm:
        responses = await served_vllm.generate(stream=stream, n=2, seed=5)
        seeds = [request.sampling.seed for request in served_vllm.loop.requests]
    assert seeds == [5, 6]
    for index in (0, 1):
        mine = [
            response
            for response in responses
            if getattr(response, response.WhichOneof("response")).index == index
        ]
        ids, chunks = (0x62,), [chunk(0x61, index=index), chunk(0x62, index=index)]
        if not stream:
            ids, chunks = (0x61, 0x62), []
        assert mine == [*chunks, complete(*ids, index=index, finish_reason="stop")]


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_are_parallel_arrays(stream):
    """Each token has its log-probability and, beside it, those of the best ones."""
    logprobs = [
        TokenLogprobs(token_id=token_id, logprob=-0.5, rank=2, top=((8, -0.25), (token_id, -0.5)))
        for token_id in (5, 6)
    ]
    script = [
        TokenDelta(token_ids=(5,), logprobs=(logprobs[0],)),
        TokenDelta(token_ids=(6,), logprobs=(logprobs[1],), finish_reason=FinishReason.LENGTH),
    ]
    async with vllm(ScriptedLoop(script)) as served_vllm:
        *chunks, last = await served_vllm.generate(stream=stream, logprobs=2)
    parts = [response.chunk.output_logprobs for response in chunks] or [
        last.complete.output_logprobs
    ]
    assert [token_id for part in parts for token_id in part.token_ids] == [5, 6]
    assert [value for part in parts for value in part.token_logprobs] == [-0.5, -0.5]
    tops = [top for part in parts for top in part.top_logprobs]
    assert [list(top.token_ids) for top in tops] == [[8, 5], [8, 6]]
    assert [list(top.values) for top in tops] == [[-0.25, -0.5]] * 2
    assert list(last.complete.output_logprobs.token_ids) == ([6] if stream else [5, 6])


@pytest.mark.parametrize(
    ("params", "last_token", "matched"),
    [
        ({"stop": ["yx", "x"]}, 0x78, {"matched_stop_str": "x"}),
        ({"stop_token_ids": [9, 8]}, 9, {"matched_token_id": 9}),
        ({"stop_token_ids": [9]}, EOS_ID, {}),
    ],
)
async def test_what_stopped_an_output_is_told(params, last_token, matched):
    """A stop string or stop token is named; the model's own end is the rule and is not."""
    script = [TokenDelta(token_ids=(0x61,)), TokenDelta(token_ids=(last_token,))]
    if "stop" not in params:
        script[-1] = TokenDelta(token_ids=(last_token,), finish_reason=FinishReason.STOP)
    async with vllm(ScriptedLoop(script)) as served_vllm:
        responses = await served_vllm.generate(stream=False, **params)
    assert responses == [complete(0x61, last_token, finish_reason="stop", **matched)]


async def test_abort_ends_a_stream_that_stays_open():
    """Abort frees the request, however often and for whatever ids; its stream ends with the reason."""
    async with vllm(ScriptedLoop(deltas("a", finish=None))) as served_vllm:
        responses = aiter(served_vllm.call())
        assert await anext(responses) == chunk(0x61)
        for _ in range(2):
            await served_vllm.stub.Abort(pb.AbortRequest(request_ids=["none", "a"]))
        assert [response async for response in responses] == [complete(finish_reason="abort")]
        assert not served_vllm.loop.running


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_frees_its_request(stream):
    """Leaving by ending the call, before the first token, leaves nothing running."""
    async with vllm(ScriptedLoop()) as served_vllm:
        call = served_vllm.call(stream=stream)
        reading = asyncio.ensure_future(call.read())
        await served_vllm.loop.submitted.wait()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await served_vllm.loop.all_closed()


@pytest.mark.parametrize(
    ("loop", "params", "code", "details"),
    [
        (ScriptedLoop(refusal=Overloaded("full")), {}, "RESOURCE_EXHAUSTED", "full"),
        (ScriptedLoop([Unavailable("rank 1 is lost")]), {}, "UNAVAILABLE", "rank 1 is lost"),
        (
            ScriptedLoop(),
            {"structural_tag": "a"},
            "INVALID_ARGUMENT",
            "structural_tag is not supported",
        ),
        (ScriptedLoop(), {"logprobs": -2}, "INVALID_ARGUMENT", "logprobs must be at least -1"),
        (ScriptedLoop(), {"top_k": 2**32 - 1}, "INVALID_ARGUMENT", "top_k must be at least -1"),
    ],
)
async def test_failures_have_the_status_gateways_act_on(loop, params, code, details):
    """Full and lost are tried elsewhere, wrong requests are not."""
    async with vllm(loop) as served_vllm:
        with pytest.raises(grpc.aio.AioRpcError, match=details) as caught:
            await served_vllm.generate(**params)
    assert caught.value.code().name == code


async def test_before_the_engine_stands():
    """Health says why nothing is served; everything else is Unavailable."""
    async with vllm(ScriptedLoop(), is_open=False) as served_vllm:
        served_vllm.status = ClusterStatus(model="tiny", detail="waiting for stage 1")
        health = await served_vllm.stub.HealthCheck(pb.HealthCheckRequest())
        assert not health.healthy
        assert health.message == "STARTING: waiting for stage 1"
        with pytest.raises(grpc.aio.AioRpcError, match="starting") as caught:
            await served_vllm.generate()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_follows_the_loop():
    """Healthy is who takes requests."""
    async with vllm(ScriptedLoop()) as served_vllm:
        for is_serving in (True, False):
            served_vllm.loop.is_serving = is_serving
            health = await served_vllm.stub.HealthCheck(pb.HealthCheckRequest())
            assert health.healthy == is_serving


async def test_the_model_is_described(tmp_path):
    """What the folder and the engine know of the model, once and for all."""
    folder = write_tiny_llama(tmp_path / "tiny", num_layers=1)
    async with vllm(ScriptedLoop(), folder=folder) as served_vllm:
        info = await served_vllm.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info == pb.GetModelInfoResponse(
        model_path=str(folder),
        tokenizer_path=str(folder),
        served_model_name="tiny",
        is_generation=True,
        max_context_length=64,
        max_req_input_len=63,
        vocab_size=VOCAB_SIZE,
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        eos_token_ids=[EOS_ID],
        bos_token_id=256,
    )


async def test_the_tokenizer_travels_without_the_weights(tmp_path):
    """The archive, whole by its fingerprint, makes the tokenizer; it is the same each time."""
    folder = write_tiny_llama(tmp_path / "tiny", num_layers=1, num_shards=2)
    async with vllm(ScriptedLoop(), folder=folder) as served_vllm:
        chunks = [
            chunk async for chunk in served_vllm.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
        ]
        again = [
            chunk async for chunk in served_vllm.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
        ]
    assert chunks == again
    data = b"".join(chunk.data for chunk in chunks)
    fingerprints = [chunk.sha256 for chunk in chunks]
    assert fingerprints == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        made = TokenizerFile.from_buffer(archive.read("tokenizer.json"))
    assert made.encode("hi").ids == list(b"hi")


async def test_the_load_is_told():
    """Counts are those of the status; the rate is that of the time between two looks."""
    async with vllm(ScriptedLoop()) as served_vllm:
        served_vllm.clock.advance(2.0)
        first = await served_vllm.stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
    (load,) = first.loads
    assert (first.version, first.dp_rank_count) == ("1.2", 1)
    assert load == pb.SchedulerLoad(
        num_running_reqs=2,
        num_waiting_reqs=3,
        num_total_reqs=5,
        num_used_tokens=160,
        max_total_num_tokens=640,
        token_usage=0.25,
        gen_throughput=50.0,
        cache_hit_rate=0.25,
        utilization=0.25,
        max_running_requests=8,
        num_waiting_uncached_tokens=77,
    )


async def test_the_server_is_described():
    """What the server has open and how long it has run."""
    async with vllm(ScriptedLoop(deltas("a"))) as served_vllm:
        served_vllm.clock.advance(3.0)
        await served_vllm.generate()
        info = await served_vllm.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert info == pb.GetServerInfoResponse(
            active_requests=5,
            last_receive_timestamp=served_vllm.clock.unix_time(),
            uptime_seconds=3.0,
            server_type="vllm-grpc",
            data_parallel_size=1,
            block_size=16,
            max_num_seqs=8,
        )


async def test_the_prefix_cache_is_flushed_between_requests():
    """A flush succeeds while no request is open, and says so when one is; odd times are refused."""
    async with vllm(ScriptedLoop()) as served_vllm:
        assert (await served_vllm.stub.FlushCache(common_pb2.FlushCacheRequest())).success
        call = served_vllm.call()
        reading = asyncio.ensure_future(call.read())
        await served_vllm.loop.submitted.wait()
        refused = await served_vllm.stub.FlushCache(common_pb2.FlushCacheRequest())
        assert (refused.success, refused.message) == (
            False,
            "requests are open, the prefix cache is as it was",
        )
        with pytest.raises(grpc.aio.AioRpcError, match="timeout_s must be at least 0"):
            await served_vllm.stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=-1))
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_calls_that_are_not_built_say_so():
    """A gateway that tries the rest of the contract is told to do without it."""
    async with vllm(ScriptedLoop()) as served_vllm:
        stub = served_vllm.stub
        calls = [
            stub.Embed(pb.EmbedRequest()),
            stub.StartProfile(common_pb2.StartProfileRequest()),
            stub.StopProfile(common_pb2.StopProfileRequest()),
            stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()),
        ]
        assert [await call.code() for call in calls] == [grpc.StatusCode.UNIMPLEMENTED] * 4
