"""What is admitted before the device thread is asked."""

import pytest

from common.errors import Cancelled, Fenced, WrongState
from common.worker_api import Authority
from tests.fakes.manual_steps import EPOCH, step_id
from worker_service.claim import Claim
from worker_service.gate import Gate
from worker_service.lifecycle import Call, Lifecycle

OLD = Authority(coordinator_id="old", epoch=EPOCH)
NEW = Authority(coordinator_id="new", epoch=EPOCH + 1)


class Gated:
    """A gate in front of a worker that serves generation 1 of the old coordinator."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.lifecycle = Lifecycle()
        self.claim = Claim()
        self.gate = Gate(self.claim, self.lifecycle, on_over=self.reasons.append)
        for call in (
            Call.INIT_DEVICE,
            Call.LOAD_MODEL,
            Call.INITIALIZE_KV_CACHE,
            Call.COMPILE_OR_WARM_UP,
            Call.BEGIN_GENERATION,
            Call.CONNECT_PEERS,
        ):
            self.lifecycle.advance(call)
        self.token = self.gate.begin_generation(OLD, 1)
        self.reasons.clear()


@pytest.fixture
def gated() -> Gated:
    """A serving worker's gate."""
    return Gated()


def test_current_step_passes(gated: Gated) -> None:
    """A step of the newest generation may be queued."""
    gated.gate.check_step(step_id(1), Call.EXECUTE_MODEL)
    assert gated.gate.is_current(step_id(1))


@pytest.mark.parametrize("foreign", [{"epoch": EPOCH - 1}, {"epoch": EPOCH + 1}, {"generation": 2}])
def test_foreign_step_is_fenced(gated: Gated, foreign: dict[str, int]) -> None:
    """A step of any other generation may not, whether past or yet to come."""
    with pytest.raises(Fenced, match=f"serves epoch {EPOCH} generation 1"):
        gated.gate.check_step(step_id(1, **foreign), Call.EXECUTE_MODEL)
    assert not gated.gate.is_current(step_id(1, **foreign))


def test_beginning_a_generation_ends_the_one_before(gated: Gated) -> None:
    """From its admission on, nothing of the old one is waited for or queued, and the reason is told."""
    token = gated.gate.begin_generation(OLD, 2)
    assert gated.token.is_cancelled
    assert not token.is_cancelled
    assert gated.reasons == [f"generation 2 of epoch {EPOCH} began"]
    with pytest.raises(Fenced):
        gated.gate.check_step(step_id(1), Call.EXECUTE_MODEL)


def test_refused_generation_ends_nothing(gated: Gated) -> None:
    """A generation that is not newer, or not the commander's, leaves the one that runs."""
    for authority in (OLD, Authority(coordinator_id="twin", epoch=EPOCH)):
        with pytest.raises(Fenced):
            gated.gate.begin_generation(authority, 1)
    assert not gated.token.is_cancelled
    assert gated.reasons == []


def test_ended_generation_takes_no_steps(gated: Gated) -> None:
    """EndGeneration of the newest one ends it before the device thread gets to it; another number none."""
    gated.gate.end_generation(7)
    assert not gated.token.is_cancelled
    gated.gate.end_generation(1)
    assert gated.reasons == [f"generation 1 of epoch {EPOCH} ended"]
    with pytest.raises(Cancelled, match="ended"):
        gated.gate.check_step(step_id(1), Call.EXECUTE_MODEL)
    assert not gated.gate.is_current(step_id(1))


def test_model_is_loaded_over_an_earlier_coordinators_generation_alone(gated: Gated) -> None:
    """Its own generation must be ended first; that of an earlier epoch is over with the call."""
    with pytest.raises(WrongState, match="end it first"):
        gated.gate.check(OLD, Call.LOAD_MODEL)
    gated.gate.check(NEW, Call.LOAD_MODEL)
    gated.gate.end_earlier(NEW)
    assert gated.token.is_cancelled
    assert gated.reasons == [f"epoch {EPOCH + 1} began"]
    # On the device thread the same check passes once more.
    gated.gate.check(NEW, Call.LOAD_MODEL)
    with pytest.raises(Fenced):
        gated.gate.check_step(step_id(1), Call.EXECUTE_MODEL)


def test_closing_stops_the_generation_and_tells_nobody(gated: Gated) -> None:
    """A worker that goes away is no newer generation: its clients see the connection end."""
    gated.gate.close("the worker is closed")
    assert gated.token.is_cancelled
    assert gated.reasons == []


def test_loading_again_in_the_same_epoch_ends_nothing() -> None:
    """A coordinator that claimed the worker before is no earlier one."""
    gated = Gated()
    gated.gate.end_earlier(OLD)
    assert gated.reasons == []
