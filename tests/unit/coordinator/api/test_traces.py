"""A client's trace reaches the engine, whichever protocol it speaks."""

from dataclasses import replace

import pytest
from stepwire.v1 import inference_pb2 as pb
from stepwire.v1 import inference_pb2_grpc

from coordinator.api.inference_servicer import InferenceServicer
from tests.fakes.noted_spans import CLIENT, HEADERS
from tests.fakes.scripted_http import ScriptedHttp
from tests.fakes.served import served

TRACE = replace(CLIENT, state="vendor=1")


@pytest.mark.parametrize("headers", [HEADERS, {"Traceparent": HEADERS["traceparent"]}, {}])
async def test_headers_of_http_are_read(headers):
    """In whatever case; without them a request has no trace."""
    service = ScriptedHttp()
    service.start()
    async with service.client as client:
        for path, body in (
            ("completions", {"prompt": "hi"}),
            ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ):
            answer = await client.post(f"/v1/{path}", json=body, headers=headers)
            assert answer.status_code == 200
    expected = {0: None, 1: CLIENT, 2: TRACE}[len(headers)]
    assert [request.trace for request in service.loop.requests] == [expected] * 2


@pytest.mark.parametrize(("metadata", "expected"), [(tuple(HEADERS.items()), TRACE), ((), None)])
async def test_metadata_of_grpc_is_read(metadata, expected):
    """Without it a request has no trace."""
    service = ScriptedHttp()
    service.start()
    servicer = InferenceServicer(service.gate)
    async with served(
        lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    ) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        async for _ in stub.Generate(pb.GenerateRequest(text="hi"), metadata=metadata):
            pass
    assert [request.trace for request in service.loop.requests] == [expected]
