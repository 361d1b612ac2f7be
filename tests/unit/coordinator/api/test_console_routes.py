"""The page and its parts as a browser gets them."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from common.clock import SystemClock
from common.errors import NotFound
from coordinator.api.console_feed import ConsoleFeed
from coordinator.api.console_routes import ConsoleRoutes
from coordinator.engine.cluster_status import ClusterStatus

REFERENCE = re.compile(r"""(?:href|src)="(?!#)([^"]+)"|from "([^"]+)";""")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the console alone."""
    feed = ConsoleFeed(lambda: ClusterStatus(model="tiny"), version="1.2.3", clock=SystemClock())
    app = FastAPI()
    app.include_router(ConsoleRoutes(feed).router())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def references(client: httpx.AsyncClient, path: str) -> set[str]:
    """Paths of all that a file asks for."""
    url = httpx.URL(f"http://test{path}")
    found = REFERENCE.findall((await client.get(path)).text)
    return {url.join(link or module).path for link, module in found}


async def test_the_page_and_all_it_asks_for_are_served(client):
    """Every link, script and import leads to a file that the browser will accept as what it is."""
    seen: set[str] = set()
    to_read = {"/"}
    while to_read:
        path = to_read.pop()
        response = await client.get(path)
        assert response.status_code == 200, path
        assert response.headers["x-content-type-options"] == "nosniff"
        seen.add(path)
        if path == "/" or path.endswith(".js"):
            to_read |= await references(client, path) - seen
    kinds = {path.rpartition(".")[2] for path in seen}
    assert kinds == {"/", "css", "js", "svg"}


async def test_nothing_but_our_own_files_runs(client):
    """The page needs no inline script or style, and its policy allows none."""
    page = await client.get("/")
    assert "'unsafe-" not in page.headers["content-security-policy"]
    assert re.search(r"<script(?! [^>]*src=)|<style|\bon\w+=|\bstyle=", page.text) is None


async def test_other_names_are_no_files(client):
    """Only the console's own files are there to be had."""
    for name in ("console_routes.py", "console.js.map"):
        with pytest.raises(NotFound, match="the console has no file"):
            await client.get(f"/console/{name}")
