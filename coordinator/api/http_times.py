"""How long HTTP requests take, by route and status: a layer around the whole application."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.call_times import CallTimes
from common.clock import Clock
from common.metrics import MetricKind, MetricSpec

NO_ROUTE = "other"
NO_ANSWER = "none"


class HttpTimes:
    """Notes every request once its answer is sent; routes are few, whatever clients ask for."""

    def __init__(self, app: ASGIApp, *, times: CallTimes, clock: Clock) -> None:
        """times is written to: the route as the method, the status as the outcome."""
        self._app = app
        self._times = times
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock.monotonic()
        status = NO_ANSWER

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            seconds = self._clock.monotonic() - started
            self._times.note(_route(scope), outcome=status, seconds=seconds)


def _route(scope: Scope) -> str:
    """The path of the route as it was declared; what clients wrote has no end."""
    return getattr(scope.get("route"), "path", NO_ROUTE)


HTTP_METRICS: tuple[MetricSpec[CallTimes], ...] = (
    MetricSpec(
        name="stepwire_http_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds of HTTP requests, to the end of the answer; none: the client left before it.",
        labels=("route", "status"),
        read=lambda times: times.seconds,
    ),
)
