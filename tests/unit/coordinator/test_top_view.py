"""The screen of `stepwire top`."""

from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.load_history import LoadSample
from coordinator.executors.progress import ReplicaPhase
from coordinator.top_view import spark_line, top_view
from tests.fakes.cluster_states import REBUILDING


def sample(rate: float, *, num_running: int = 0) -> LoadSample:
    """A sample with these numbers."""
    return LoadSample(
        at=0.0,
        generated_rate=rate,
        prompt_rate=2 * rate,
        num_running=num_running,
        num_waiting=0,
        kv_usage=0.0,
    )


def lines(view: RenderableType, *, width: int = 120) -> list[str]:
    """What is on the screen, without colours and trailing blanks."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(view)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_load_ranks_and_losses_are_on_the_screen():
    """Rates, the waiting, the lost rank with its cause, and when that was."""
    shown = lines(top_view(REBUILDING, [sample(100.0), sample(250.0)], now=90.0))
    assert shown[:2] == [
        "tiny  ● WAITING  epoch 3  generation 2  step 412, 1.3 s ago",
        "waiting for stage 1 (have 1 of 2)",
    ]
    text = "\n".join(shown)
    assert "250  ▄█" in text
    assert "500 prompt tokens/s" in text
    assert "27 of 127 blocks, 4 preemptions" in text
    assert "500 of 2,000 prompt tokens" in text
    assert "● compute 0.5 s" in text
    assert "stage 1  10.0.0.1:50061  cpu     2-3     0 MB     ● LOST: killed by SIGKILL" in text
    assert shown[-1].split() == ["90", "s", "ago", "2", "stage", "1", "lost"]


def test_a_coordinator_that_starts_has_a_screen():
    """Without workers, samples and losses there is nothing to divide by."""
    shown = lines(top_view(ClusterStatus(model="tiny"), [], now=0.0))
    assert shown[0].rstrip() == "tiny  ● STARTING"
    assert shown[-1] == "no worker has joined yet"


def test_trouble_stands_where_the_state_is_told():
    """An old state is called that, and its own words give way."""
    shown = lines(top_view(REBUILDING, [], now=0.0, trouble="no answer"))
    assert shown[1] == "no answer"
    assert "waiting for stage 1 (have 1 of 2)" not in shown


def test_a_narrow_terminal_cuts_no_cause():
    """A cause that does not fit goes on below."""
    words = "\n".join(lines(top_view(REBUILDING, [], now=0.0), width=60))
    assert "SIGKILL" in words


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([0.0, 0.0], "▁▁"),
        ([0.0, 50.0, 100.0], "▁▅█"),
        ([1000.0, 0.0, 1.0, 1.0], "▁██"),
    ],
)
def test_bars_are_as_high_as_the_highest_of_those_shown(values: list[float], drawn: str):
    """Three fit: the fourth from the end no longer counts."""
    assert spark_line(values, width=3) == drawn


def test_a_serving_rank_is_green():
    """Colour tells a group that serves from one that waits."""
    serving = replace(REBUILDING, is_serving=True, phase=ReplicaPhase.SERVING, detail="")
    console = Console(width=120, color_system="standard", force_terminal=True)
    with console.capture() as captured:
        console.print(top_view(serving, [], now=0.0))
    assert "\x1b[32m● compute" in captured.get()
