"""The console: one page at /, its parts under /console/, and the events that keep it live."""

from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from common.errors import NotFound
from coordinator.api.console_feed import ConsoleFeed
from coordinator.api.event_stream import EventStreamResponse

PAGE = "index.html"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Asked again after an upgrade, and nothing but our own files runs or is shown in a frame.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ConsoleRoutes:
    """Serves the packaged files and the feed; the chat on the page uses the OpenAI routes."""

    def __init__(self, feed: ConsoleFeed) -> None:
        """Read the files, once."""
        self._feed = feed
        self._files = {
            file.name: file.read_bytes()
            for file in (files("coordinator.api") / "console").iterdir()
            if PurePath(file.name).suffix in TYPES
        }

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/", self.page, methods=["GET"], response_model=None)
        router.add_api_route("/favicon.ico", self.icon, methods=["GET"], response_model=None)
        router.add_api_route("/console/events", self.events, methods=["GET"], response_model=None)
        router.add_api_route("/console/{name}", self.part, methods=["GET"], response_model=None)
        return router

    async def page(self) -> Response:
        """The page."""
        return self._file(PAGE)

    async def icon(self) -> Response:
        """Where browsers look for an icon when they show something else than the page."""
        return RedirectResponse("/console/icon.svg")

    async def part(self, name: str) -> Response:
        """A style, script or picture of the page."""
        if name not in self._files:
            raise NotFound(f"the console has no file {name!r}")
        return self._file(name)

    async def events(self) -> Response:
        """The state now, with its history, and then every second."""
        self._feed.join()
        return EventStreamResponse(self._feed.frames(), on_close=self._feed.leave)

    def _file(self, name: str) -> Response:
        return Response(self._files[name], media_type=TYPES[PurePath(name).suffix], headers=HEADERS)
