"""The gRPC service and its clients carry requests, answers and errors unchanged."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from stepwire.v1 import cluster_pb2_grpc, inference_pb2_grpc
from stepwire.v1 import inference_pb2 as pb

from common.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unavailable,
)
from common.requests import FinishReason, TokenDelta, TokenLogprobs
from common.rpc.interceptors import ServiceInterceptor
from common.rpc.server import build_server
from common.worker_api import Rank
from coordinator.api.cluster_servicer import ClusterServicer
from coordinator.api.inference_servicer import InferenceServicer, decode_generate
from coordinator.client import AsyncClient, Client
from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.engine import Engine
from coordinator.engine.gate import EngineGate
from coordinator.engine.generation import ChatTurn, ServedModel
from coordinator.executors.topology import WorkerTopology
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.tokenizer import Tokenizer
from tests.fakes.byte_tokenizer import CHAT_TEMPLATE, VOCAB_SIZE, byte_tokenizer
from tests.fakes.scripted_loop import ScriptedLoop, deltas

MODEL = ServedModel(name="tiny", max_model_len=64, vocab_size=VOCAB_SIZE, created=5)
LOST = WorkerTopology(
    rank=Rank(stage=1),
    address="host:1",
    device="cpu",
    incarnation="abc",
    first_layer=3,
    end_layer=6,
    parameter_bytes=7,
    cause="exited with signal 9",
)
STATUS = ClusterStatus(
    model="tiny",
    is_serving=True,
    epoch=2,
    generation=1,
    step=9,
    workers=(LOST,),
    num_waiting=3,
    num_running=4,
    num_blocks=31,
    num_free_blocks=30,
)


class Served:
    """A coordinator's gRPC server on a scripted loop."""

    def __init__(self) -> None:
        self.loop = ScriptedLoop(deltas("he", "llo"))
        self.gate = EngineGate()
        self.address = f"unix-abstract:stepwire-{uuid.uuid4().hex}"
        self.server = build_server(interceptors=[ServiceInterceptor()])
        self.server.add_insecure_port(self.address)
        inference_pb2_grpc.add_InferenceServicer_to_server(
            InferenceServicer(self.gate), self.server
        )
        cluster_pb2_grpc.add_ClusterServicer_to_server(ClusterServicer(lambda: STATUS), self.server)
        self.client = AsyncClient(self.address)

    def start(self) -> None:
        """Open the gate."""
        tokenizer = Tokenizer(byte_tokenizer(), template=ChatTemplate(CHAT_TEMPLATE))
        self.gate.open(Engine(model=MODEL, tokenizer=tokenizer, loop=self.loop))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A started server."""
    served = Served()
    served.start()
    await served.server.start()
    async with served.client:
        yield served
    await served.server.stop(None)


async def test_an_answer_streams_with_counts(served):
    """Deltas arrive as they were made; the last one has the finish reason and the prompt's size."""
    received = [delta async for delta in served.client.generate("abc")]
    assert [delta.text for delta in received] == ["he", "llo"]
    assert [delta.token_ids for delta in received] == [tuple(b"he"), tuple(b"llo")]
    assert [delta.finish_reason for delta in received] == [None, FinishReason.STOP]
    assert (received[-1].num_prompt_tokens, received[-1].num_generated_tokens) == (3, 5)


async def test_options_reach_the_request(served):
    """Given options arrive, those left out stay the coordinator's choice."""
    await served.client.complete(
        [1, 2],
        request_id="mine",
        max_tokens=4,
        temperature=0.0,
        top_k=3,
        seed=9,
        stop=["END"],
        stop_token_ids=[5],
        ignore_eos=True,
        logprobs=0,
        priority=-2,
    )
    (request,) = served.loop.requests
    assert (request.request_id, request.prompt_token_ids) == ("mine", (1, 2))
    assert (request.sampling.temperature, request.sampling.top_k) == (0.0, 3)
    assert (request.sampling.seed, request.sampling.top_p) == (9, 1.0)
    assert (request.sampling.num_logprobs, request.stopping.max_tokens) == (0, 4)
    assert (request.stopping.stop, request.stopping.stop_token_ids) == (("END",), {5})
    assert request.stopping.ignore_eos
    assert request.priority == -2


def test_an_empty_conversation_is_refused_by_its_name():
    """The field is called as over HTTP."""
    with pytest.raises(InvalidRequest, match="messages is empty") as caught:
        decode_generate(pb.GenerateRequest(conversation=pb.Conversation()))
    assert caught.value.param == "messages"


async def test_a_conversation_is_answered(served):
    """chat() sends turns, which the template renders."""
    answer = await served.client.chat([ChatTurn(role="user", content="hi")])
    assert answer.text == "hello"
    assert b"user\nhi" in bytes(id for id in served.loop.requests[0].prompt_token_ids if id < 256)


async def test_several_outputs_arrive_by_index(served):
    """Each of n answers is whole, with its own counts; `complete` gives the first."""
    first, second = await served.client.complete_all("x", n=2, seed=4)
    assert (first.index, first.text, first.num_generated_tokens) == (0, "hello", 5)
    assert (second.index, second.text, second.num_generated_tokens) == (1, "hello", 5)
    assert [request.sampling.seed for request in served.loop.requests] == [4, 5]
    assert (await served.client.complete("x", n=2)).index == 0


async def test_log_probabilities_arrive(served):
    """Chosen token, rank and alternatives cross the wire."""
    position = TokenLogprobs(token_id=0x61, logprob=-0.5, rank=2, top=((0x62, -0.25),))
    served.loop.script = [
        TokenDelta(token_ids=(0x61,), logprobs=(position,), finish_reason=FinishReason.LENGTH)
    ]
    (received,) = (await served.client.complete("x", logprobs=1)).logprobs
    assert (received.chosen.text, received.chosen.logprob, received.rank) == ("a", -0.5, 2)
    assert [(token.text, token.logprob) for token in received.top] == [("b", -0.25)]


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"temperature": 3.0}, InvalidRequest, "temperature"),
        ({"temperature": float("nan")}, InvalidRequest, "temperature"),
        ({"max_tokens": 0}, InvalidRequest, "max_tokens"),
        ({"max_tokens": -1}, InvalidRequest, None),
        ({"stop": [""]}, InvalidRequest, "stop"),
        ({"logprobs": 21}, InvalidRequest, "logprobs"),
        ({"model": "huge"}, ModelNotFound, "model"),
        ({"n": 0}, InvalidRequest, "n"),
        ({"logit_bias": {5: 101.0}}, InvalidRequest, "logit_bias"),
    ],
)
async def test_a_bad_request_is_refused_by_name(served, options, error, param):
    """The error class and the field's name reach the client."""
    with pytest.raises(error) as caught:
        await served.client.complete("x", **options)
    assert getattr(caught.value, "param", None) == param


async def test_an_empty_request_is_refused(served):
    """A request without a prompt says so."""
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        await served.client.complete("")


@pytest.mark.parametrize("error", [Overloaded("full"), AlreadyExists("twice"), Unavailable("x")])
async def test_errors_keep_their_class(served, error):
    """What the loop refuses with is what the client gets."""
    served.loop.refusal = error
    with pytest.raises(type(error), match=str(error)):
        await served.client.complete("x")


@pytest.mark.parametrize("script", [(), deltas("a", finish=None)], ids=["waiting", "mid-stream"])
async def test_leaving_frees_the_request(served, script):
    """A client that cancels its call frees the request, also before the first token."""
    served.loop.script = script

    async def read_all() -> None:
        async with aclosing(served.client.generate("x")) as stream:
            async for _ in stream:
                pass

    reader = asyncio.create_task(read_all())
    await served.loop.submitted.wait()
    reader.cancel()
    await asyncio.wait({reader})
    await served.loop.all_closed()


async def test_a_deadline_frees_the_request(served):
    """An answer that takes longer than the client's timeout is given up on both sides."""
    served.loop.script = ()
    async with AsyncClient(served.address, timeout=0.1) as hasty:
        with pytest.raises(DeadlineExceeded):
            await hasty.complete("x")
    await served.loop.all_closed()


async def test_abort_ends_the_stream(served):
    """An aborted request ends with its reason."""
    served.loop.script = deltas("a", finish=None)
    stream = served.client.generate("x", request_id="mine")
    assert (await anext(stream)).text == "a"
    await served.client.abort("unknown")
    await served.client.abort("mine")
    assert (await anext(stream)).finish_reason is FinishReason.ABORT
    await stream.aclose()


async def test_models_and_status(served):
    """Names, lengths, topology and numbers arrive whole."""
    (model,) = await served.client.list_models()
    assert (model.name, model.max_model_len, model.created) == ("tiny", 64, 5)
    assert await served.client.status() == STATUS


async def test_the_synchronous_client_does_the_same(served):
    """The client without an event loop answers alike, on a thread of its own here."""

    def ask() -> None:
        with Client(served.address) as client:
            assert [delta.text for delta in client.generate("x")] == ["he", "llo"]
            assert client.complete([1]).num_generated_tokens == 5
            assert [answer.text for answer in client.complete_all("x", n=2)] == ["hello"] * 2
            assert client.chat([ChatTurn(role="user", content="hi")]).text == "hello"
            assert client.list_models()[0].name == "tiny"
            assert client.status() == STATUS
            client.abort("unknown")
            with pytest.raises(InvalidRequest, match="top_k"):
                client.complete("x", top_k=2**31)

    await asyncio.to_thread(ask)


async def test_before_the_start_calls_are_unavailable():
    """A coordinator that is up but not ready says that it starts."""
    served = Served()
    await served.server.start()
    async with served.client:
        with pytest.raises(Unavailable, match="starting"):
            await served.client.complete("x")
        with pytest.raises(Unavailable, match="starting"):
            await served.client.list_models()
    await served.server.stop(None)
