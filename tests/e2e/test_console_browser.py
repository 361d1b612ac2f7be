"""The console in a browser: a chat, a worker that is killed and comes back, and nobody shut out."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.fakes.coordinator_process import TINY_LIMITS, CoordinatorProcess, coordinator_process
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_process import WorkerProcess

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

WIDTHS = (1280, 400)
THEMES = ("light", "dark")
SERVES_WITHIN_MS = 30_000
BLOCKING = {"serious", "critical"}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A coordinator and the worker of each stage, which a test may replace."""

    coordinator: CoordinatorProcess
    workers: list[WorkerProcess]

    def lose(self, stage: int) -> None:
        """Kill a worker at once."""
        self.workers[stage].send_signal(signal.SIGKILL)
        self.workers[stage].kill()

    def restart(self, stage: int) -> None:
        """Start a worker where one was lost."""
        self.workers[stage] = WorkerProcess(f"--listen={self.workers[stage].address}")
        self.workers[stage].wait_until_ready()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny Llama that never ends an answer by itself."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_layers=2)
    for name in ("config.json", "generation_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub(r'"eos_token_id": \d+', '"eos_token_id": []', text))
    return folder


@contextmanager
def running_cluster(model: Path) -> Iterator[Cluster]:
    """Two stages on workers of their own."""
    workers = [WorkerProcess(), WorkerProcess()]
    try:
        addresses = ",".join(worker.wait_until_ready().address for worker in workers)
        with coordinator_process(
            "coordinator", f"--workers={addresses}", f"--model={model}", *TINY_LIMITS
        ) as coordinator:
            yield Cluster(coordinator=coordinator, workers=workers)
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[Cluster]:
    """A cluster that no test breaks."""
    with running_cluster(model) as cluster:
        yield cluster


@pytest.fixture
def fragile_cluster(model: Path) -> Iterator[Cluster]:
    """A cluster for one test."""
    with running_cluster(model) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def console(
    browser: Browser, cluster: Cluster, *, width: int = 1280, theme: str = "light"
) -> Iterator[Page]:
    """The page, once it has heard of the coordinator; fails when a script of it failed."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda said: failures.append(said.text) if "Policy" in said.text else None)
    page.goto(cluster.coordinator.http_url)
    expect(page.locator("#phase")).not_to_have_text("Connecting")
    yield page
    context.close()
    assert failures == []


def rank(page: Page, stage: int):
    """The card of a stage."""
    return page.get_by_role("article", name=f"Stage {stage}", exact=True)


def open_settings(page: Page) -> None:
    """Show the settings of the chat, by keyboard, unless they are shown."""
    button = page.get_by_role("button", name="Settings")
    if button.get_attribute("aria-expanded") == "false":
        button.press("Enter")


def ask(page: Page, question: str, *, max_tokens: int) -> None:
    """Ask by keyboard alone."""
    open_settings(page)
    page.get_by_role("spinbutton", name="Most tokens").fill(str(max_tokens))
    page.get_by_role("textbox", name="Message").fill(question)
    page.keyboard.press("Enter")


def test_a_chat_is_streamed_and_survives_a_reload(browser, cluster):
    """An answer comes with its counts; the conversation is there again after a reload, and ends."""
    with console(browser, cluster) as page:
        ask(page, "**hello** <b>there</b>", max_tokens=20)
        turns = page.get_by_role("log", name="Conversation")
        expect(turns).to_contain_text(
            re.compile(r"20 tokens · first after .* cut at the token limit")
        )
        expect(turns).to_contain_text("**hello** <b>there</b>")
        page.reload()
        expect(turns).to_contain_text("**hello** <b>there</b>")
        expect(turns).to_contain_text("20 tokens")
        page.get_by_role("button", name="New chat").click()
        expect(turns).not_to_contain_text("hello")
        expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_an_answer_is_stopped_by_escape(browser, cluster):
    """What came until then stays, and the coordinator has let go of the request."""
    with console(browser, cluster) as page:
        ask(page, "hello", max_tokens=1900)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.get_by_role("textbox", name="Message").press("Escape")
        expect(page.get_by_role("log", name="Conversation")).to_contain_text("Stopped")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator("#running")).to_have_text("0")


def test_a_refusal_is_told_in_the_words_of_the_service(browser, cluster):
    """A limit that is exceeded is named in the conversation, and the next try is a button away."""
    with console(browser, cluster) as page:
        open_settings(page)
        page.get_by_role("spinbutton", name="Temperature").fill("-1")
        ask(page, "hello", max_tokens=5)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("temperature")
        page.get_by_role("spinbutton", name="Temperature").fill("0")
        alert.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("log", name="Conversation")).to_contain_text("5 tokens")


def test_a_killed_worker_turns_red_with_the_cause_and_green_again(browser, fragile_cluster):
    """Whoever looks sees which rank is lost and why, an open answer says so, and all of it ends."""
    cluster = fragile_cluster
    with console(browser, cluster) as page, console(browser, cluster, width=400) as phone:
        expect(rank(page, 1)).to_contain_text("Serving")
        ask(page, "hello", max_tokens=1900)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        cluster.lose(1)
        for view in (page, phone):
            expect(rank(view, 1)).to_have_attribute("data-state", "bad")
            expect(rank(view, 1)).to_contain_text("nobody listens at its port")
            expect(rank(view, 0)).to_have_attribute("data-state", "busy")
            expect(view.locator("#notice")).to_have_text("waiting for stage 1 (have 1 of 2)")
        expect(page.get_by_role("alert")).to_contain_text("stage 1")
        failures = page.get_by_role("region", name="Failures").get_by_role("listitem")
        expect(failures).to_contain_text(cluster.workers[1].address)
        expect(page.locator("#announcement")).to_contain_text("Stage 1 lost")
        check_accessibility(page, "lost")
        check_accessibility(phone, "lost, on a phone")

        cluster.restart(1)
        for view in (page, phone):
            expect(rank(view, 1)).to_have_attribute("data-state", "good", timeout=SERVES_WITHIN_MS)
            expect(view.locator("#notice")).to_be_hidden()
        expect(page.locator("#announcement")).to_have_text("Serving again")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("button", name="Stop")).to_be_visible()


def test_a_stopped_coordinator_is_called_silent(browser, cluster):
    """A coordinator that holds the connection and says nothing is not shown as if it served."""
    with console(browser, cluster) as page:
        cluster.coordinator.send_signal(signal.SIGSTOP)
        try:
            expect(page.locator("#phase")).to_have_text("Silent", timeout=10_000)
        finally:
            cluster.coordinator.send_signal(signal.SIGCONT)
        expect(page.locator("#phase")).to_have_text("Serving", timeout=SERVES_WITHIN_MS)


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("**a** and *b* and `c`", "<p><strong>a</strong> and <em>b</em> and <code>c</code></p>"),
        ("2 * 3 * 4 and **open", "<p>2 * 3 * 4 and **open</p>"),
        ("## Head\ntext", "<h4>Head</h4><p>text</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("3. a\n\n4. b\nend", '<ol start="3"><li>a</li><li>b</li></ol><p>end</p>'),
        ("```py\nx = '<b>'", "<pre tabindex=\"0\"><code>x = '&lt;b&gt;'</code></pre>"),
        ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ],
)
def test_what_a_model_writes_is_drawn_and_never_run(browser, cluster, text: str, drawn: str):
    """The Markdown that models write becomes elements; markup stays text, and so does what is open."""
    draw = """async (text) => {
        const { render } = await import("/console/markdown.js");
        const box = document.createElement("div");
        box.append(...render(text));
        return box.innerHTML;
    }"""
    with console(browser, cluster) as page:
        assert page.evaluate(draw, text) == drawn


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_and_nobody_is_shut_out(browser, cluster, width: int, theme: str):
    """In both themes, on a desk and on a phone: no scrolling sideways, no serious violation."""
    with console(browser, cluster, width=width, theme=theme) as page:
        for view in ("Cluster", "Chat"):
            if width < 800:
                page.get_by_role("button", name=view, exact=True).click()
            check_accessibility(page, f"{view}, {theme}, {width}")
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(overflow) == 0
        ask(page, "hello", max_tokens=20)
        expect(page.get_by_role("log", name="Conversation")).to_contain_text("20 tokens")
        check_accessibility(page, f"a chat, {theme}, {width}")


def test_the_theme_is_kept(browser, cluster):
    """Whoever prefers a theme to that of the system finds it again."""
    with console(browser, cluster, theme="light") as page:
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Theme: auto").click()
        page.get_by_role("button", name="Theme: light").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != light
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def check_accessibility(page: Page, what: str) -> None:
    """Fail with the rules and places of serious violations."""
    violations = Axe().run(page).response["violations"]
    blocking = [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in violations
        if one["impact"] in BLOCKING
    ]
    assert blocking == [], what
