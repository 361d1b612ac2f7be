"""The command `top`: what a coordinator does, in a terminal, until `q`.

It imports its client and rich when it runs, as the other client commands do.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import click

from common.errors import DeadlineExceeded, ServiceError, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.client import Client

NUM_REMEMBERED = 120


@click.command()
@click.option("--address", default="127.0.0.1:50050", show_default=True, help="HOST:PORT of gRPC.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print one screen; so when stdout is no terminal.")
def top(address: str, *, interval: float, once: bool) -> None:
    """Watch a coordinator: its load, its workers, and what it lost and why. Ends with q or Ctrl-C.

    \b
    Examples:
      stepwire top
      stepwire top --address 10.0.0.1:50050 --interval 5
      stepwire top --once
    """
    from rich.console import Console
    from rich.live import Live

    from coordinator.client import Client

    console = Console()
    with Client(address) as client:
        watched = _Watched(client, address)
        watched.look()
        if once or not console.is_terminal:
            console.print(watched.screen())
            return
        with (
            _keys() as key_within,
            Live(watched.screen(), console=console, screen=True, auto_refresh=False) as live,
        ):
            try:
                while key_within(interval) not in {"q", "Q"}:
                    watched.look_again()
                    live.update(watched.screen(), refresh=True)
            except KeyboardInterrupt:
                return


class _Watched:
    """A coordinator as it was when it was last heard."""

    def __init__(self, client: "Client", address: str) -> None:
        from common.clock import SystemClock
        from coordinator.engine.cluster_status import ClusterStatus
        from coordinator.engine.load_history import LoadHistory

        self._client = client
        self._address = address
        self._clock = SystemClock()
        self._history = LoadHistory(max_samples=NUM_REMEMBERED)
        self._status = ClusterStatus(model="")
        self._trouble = ""

    def look(self) -> None:
        """Ask it; raises Unavailable or DeadlineExceeded when it does not answer."""
        try:
            self._status = self._client.status()
        except (Unavailable, DeadlineExceeded) as error:
            raise Unavailable(f"no answer from {self._address}; is a coordinator there?") from error
        self._trouble = ""
        self._history.note(self._status, at=self._clock.monotonic())

    def look_again(self) -> None:
        """Ask it, and keep what it said last when it does not answer."""
        try:
            self.look()
        except ServiceError as error:
            self._trouble = f"{error} Trying again; this is how it was."

    def screen(self) -> "RenderableType":
        """What there is to see."""
        from coordinator.top_view import top_view

        return top_view(
            self._status,
            self._history.samples,
            now=self._clock.unix_time(),
            trouble=self._trouble,
        )


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and gives it, or ""."""
    if not sys.stdin.isatty():
        nothing = Event()
        yield lambda seconds: "" if not nothing.wait(seconds) else "q"
        return
    import select
    import termios
    import tty

    def key_within(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield key_within
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
