"""Facts of the time HTTP requests take."""

import httpx
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse

from common.call_times import CallTimes
from coordinator.api.http_times import HttpTimes
from tests.fakes.manual_clock import ManualClock


def app(times: CallTimes, clock: ManualClock) -> FastAPI:
    """Routes that take a second each, and half a second for each piece of a stream."""
    app = FastAPI()

    @app.get("/things/{name}")
    async def thing(name: str) -> Response:
        clock.advance(1.0)
        return JSONResponse({"name": name}, status_code=200 if name == "a" else 400)

    @app.get("/stream")
    async def stream() -> Response:
        async def pieces():
            for _ in range(4):
                clock.advance(0.5)
                yield b"x"

        return StreamingResponse(pieces())

    app.add_middleware(HttpTimes, times=times, clock=clock)
    return app


async def test_requests_are_noted_by_route_and_status():
    """As the route was declared, so that clients cannot make up labels; a stream to its end."""
    times, clock = CallTimes(), ManualClock()
    transport = httpx.ASGITransport(app(times, clock))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/things/a", "/things/b", "/things/c", "/stream", "/no/such/path"):
            await client.get(path)
    noted = {key: (spent.num_values, spent.total) for key, spent in times.seconds.items()}
    assert noted == {
        ("/things/{name}", "200"): (1, 1.0),
        ("/things/{name}", "400"): (2, 2.0),
        ("/stream", "200"): (1, 2.0),
        ("other", "404"): (1, 0.0),
    }
