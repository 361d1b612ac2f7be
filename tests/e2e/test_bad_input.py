"""Bad input on both protocols: a clear error at the edge, the next request works, no worker notices."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import StatusCode
from stepwire.v1 import inference_pb2 as pb

from common.errors import RequestTooLarge
from tests.fakes.running_coordinator import RunningCoordinator, running_coordinator
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess

MAX_LEN, VOCAB_SIZE = 2048, 260
HUNDRED_MEGABYTES = 100 << 20
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
LONG_BIAS = {index: 1.0 for index in range(10_000)}
DEEP = b'{"prompt": "x", "extra": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A coordinator with one worker, whose log stands in a file."""

    coordinator: RunningCoordinator
    http: httpx.Client
    channel: grpc.Channel
    worker_log: Path

    def generate(self, request: bytes) -> list[pb.GenerateResponse]:
        """Call Inference.Generate with these bytes, whatever they are."""
        call = self.channel.unary_stream(
            "/stepwire.v1.Inference/Generate",
            request_serializer=None,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        return list(call(request, timeout=20))

    def check_next_request(self) -> None:
        """An ordinary request is answered over both protocols, and everything is given back."""
        answer = self.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2
        last = self.generate(message(text="hi", max_tokens=2))[-1]
        assert last.usage.completion_tokens == 2
        self.coordinator.wait_until_idle()


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    """A worker process with a tiny model, and a coordinator that is not its parent."""
    folder = tmp_path_factory.mktemp("bad-input")
    model = write_tiny_llama(folder / "tiny", num_layers=2)
    log = folder / "worker.log"
    with log.open("w") as sink:
        worker = WorkerProcess(log=sink)
    try:
        worker.wait_until_ready()
        flags: dict[str, Any] = {"model": str(model), "executor": "remote"}
        flags |= {"workers": worker.address, "max_num_batched_tokens": 256, "max_waiting": 64}
        flags |= {"kv_cache_bytes": 4 << 20}
        with (
            running_coordinator(flags) as coordinator,
            httpx.Client(base_url=coordinator.http_url, timeout=20) as http,
            # Its own limit would keep it from sending what the server has to refuse.
            grpc.insecure_channel(
                coordinator.grpc_address, options=[("grpc.max_send_message_length", -1)]
            ) as channel,
        ):
            yield Service(coordinator=coordinator, http=http, channel=channel, worker_log=log)
    finally:
        worker.kill()


def message(**fields: Any) -> bytes:
    """A GenerateRequest in bytes."""
    return pb.GenerateRequest(**fields).SerializeToString()


def body(**fields: Any) -> bytes:
    """A completion's body in bytes; NaN is spelled as Python spells it."""
    return json.dumps({"prompt": "x"} | fields).encode()


HTTP = {
    "prompt too long": (body(prompt="x" * MAX_LEN), 400, "prompt", f"at most {MAX_LEN - 1}"),
    "prompt far too long": (body(prompt="x" * (15 << 20)), 400, "prompt", f"{MAX_LEN - 1} tokens"),
    "unknown model": (body(model="huge"), 404, "model", "'huge'"),
    "temperature -1": (body(temperature=-1), 400, "temperature", "at least 0"),
    "temperature NaN": (body(temperature=float("nan")), 400, "temperature", "at least 0"),
    "n 0": (body(n=0), 400, "n", "at least 1"),
    "n 129": (body(n=129), 400, "n", "at most 128"),
    "more outputs than the queue": (body(prompt=["x"] * 33, n=2), 400, "prompt", "at most 64"),
    "max_tokens 0": (body(max_tokens=0), 400, "max_tokens", "at least 1"),
    "300 stop strings": (body(stop=["y"] * 300), 400, "stop", "at most 16"),
    "a stop string of 1,000": (body(stop="y" * 1000), 400, "stop", "at most 256"),
    "no UTF-8": (b'{"prompt": "\xff\xfe"}', 400, None, "unicode"),
    "half a character": (b'{"prompt": "\\ud800"}', 400, None, "JSON"),
    "10,000 biases": (body(logit_bias=LONG_BIAS), 400, "logit_bias", "at most 1024"),
    "a token id too large": (body(prompt=[1, VOCAB_SIZE]), 400, "prompt", f"0 to {VOCAB_SIZE - 1}"),
    "a negative token id": (body(prompt=[-1]), 400, "prompt", f"0 to {VOCAB_SIZE - 1}"),
    "deep JSON": (DEEP, 400, None, "at most 200"),
    "no JSON": (b"{", 400, None, "JSON"),
    "an empty body": (b"", 400, None, "JSON"),
    "no object": (b"[]", 400, None, "object"),
}

GRPC = {
    "prompt too long": (message(text="x" * MAX_LEN), "prompt", f"at most {MAX_LEN - 1}"),
    "prompt far too long": (message(text="x" * (15 << 20)), "prompt", f"{MAX_LEN - 1} tokens"),
    "unknown model": (message(text="x", model="huge"), "model", "'huge'"),
    "temperature -1": (message(text="x", temperature=-1), "temperature", "at least 0"),
    "temperature NaN": (message(text="x", temperature=float("nan")), "temperature", "at least 0"),
    "n 0": (message(text="x", n=0), "n", "at least 1"),
    "n 129": (message(text="x", n=129), "n", "at most 128"),
    "max_tokens 0": (message(text="x", max_tokens=0), "max_tokens", "at least 1"),
    "300 stop strings": (message(text="x", stop=["y"] * 300), "stop", "at most 16"),
    "a stop string of 1,000": (message(text="x", stop=["y" * 1000]), "stop", "at most 256"),
    "no UTF-8": (b"\x1a\x02\xff\xfe", None, "UTF-8"),
    "no message": (b"\x1a\x82", None, "not the message"),
    "10,000 biases": (message(text="x", logit_bias=LONG_BIAS), "logit_bias", "at most 1024"),
    "a token id too large": (
        message(token_ids=pb.TokenIds(ids=[1, VOCAB_SIZE])),
        "prompt",
        f"0 to {VOCAB_SIZE - 1}",
    ),
    "no prompt": (message(), "prompt", "empty"),
}
GRPC_STATUS = {"unknown model": StatusCode.NOT_FOUND}


@pytest.mark.parametrize("name", HTTP)
def test_bad_input_over_http(service, name):
    """Status, field and limit are told; the next request works; the worker's log is as before."""
    content, status, param, words = HTTP[name]
    log = service.worker_log.read_bytes()
    response = service.http.post("/v1/completions", content=content)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert words in error["message"]
    assert param is None or param in error["message"]
    service.check_next_request()
    assert service.worker_log.read_bytes() == log


@pytest.mark.parametrize("name", GRPC)
def test_bad_input_over_grpc(service, name):
    """The same over gRPC, in status, metadata and details."""
    request, param, words = GRPC[name]
    log = service.worker_log.read_bytes()
    with pytest.raises(grpc.RpcError) as caught:
        service.generate(request)
    assert caught.value.code() is GRPC_STATUS.get(name, StatusCode.INVALID_ARGUMENT)
    assert words in caught.value.details()
    assert dict(caught.value.trailing_metadata()).get("stepwire-error-param") == param
    service.check_next_request()
    assert service.worker_log.read_bytes() == log


def test_100_megabytes(service):
    """A request that nobody could mean is refused while it is read, with the limit in the message."""
    log = service.worker_log.read_bytes()
    response = service.http.post("/v1/completions", content=body(prompt="x" * HUNDRED_MEGABYTES))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert "16777216 bytes" in error["message"]
    with pytest.raises(grpc.RpcError, match="16777216") as caught:
        service.generate(message(text="x" * HUNDRED_MEGABYTES))
    # gRPC's own refusal.
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(RequestTooLarge, match="16777216 are read"):
        service.coordinator.client.complete("x" * HUNDRED_MEGABYTES)
    service.check_next_request()
    assert service.worker_log.read_bytes() == log


def test_a_body_in_pieces_is_refused_while_it_arrives(service):
    """A body whose length nobody announced is 413 before all of it was sent."""
    num_sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal num_sent
        yield b'{"prompt": "'
        while num_sent < HUNDRED_MEGABYTES:
            num_sent += 1 << 20
            yield b"x" * (1 << 20)

    response = service.http.post("/v1/completions", content=pieces())
    assert response.status_code == 413
    service.check_next_request()


def test_an_id_used_twice_at_once(service):
    """409 over HTTP and ALREADY_EXISTS over gRPC, whichever protocol the first came by."""
    call = service.channel.unary_stream(
        "/stepwire.v1.Inference/Generate", response_deserializer=pb.GenerateResponse.FromString
    )
    running = call(message(text="x", request_id="mine", max_tokens=1500, ignore_eos=True))
    next(running)
    response = service.http.post(
        "/v1/chat/completions", json=HELLO, headers={"X-Request-Id": "mine"}
    )
    assert (response.status_code, response.headers["x-request-id"]) == (409, "mine")
    assert "'mine'" in response.json()["error"]["message"]
    with pytest.raises(grpc.RpcError, match="'mine'") as caught:
        service.generate(message(text="x", request_id="mine"))
    assert caught.value.code() is StatusCode.ALREADY_EXISTS
    assert next(running).request_id == "mine"
    running.cancel()
    service.check_next_request()


def test_n_answers_over_both_protocols_are_the_same(service):
    """With one seed, the choices of HTTP and those of gRPC hold the same texts, and they differ."""
    options = {"n": 3, "seed": 5, "max_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    answer = service.http.post("/v1/completions", json={"prompt": "hello"} | options).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    assert [
        whole.text for whole in service.coordinator.client.complete_all("hello", **options)
    ] == texts
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 24)
    alone = service.http.post(
        "/v1/completions", json={"prompt": "hello"} | options | {"n": 1, "seed": 6}
    ).json()
    assert alone["choices"][0]["text"] == texts[1]


def test_leaving_several_answers_frees_all_of_them(service):
    """A client that closes a stream of many choices ends every one."""
    request: dict[str, Any] = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1500, "stream": True}
    request["ignore_eos"] = True
    with service.http.stream("POST", "/v1/completions", json=request) as response:
        lines = response.iter_lines()
        next(lines)
        assert service.coordinator.client.status().num_running > 1
    service.coordinator.wait_until_idle()
