"""Facts of what Prometheus reads from a worker."""

import pytest
from prometheus_client import CollectorRegistry

from common.channels.link_traffic import LinkTraffic
from common.metrics import TableCollector
from common.step import StepTimings
from common.worker_api import DevicePhase, Rank, WorkerActivity
from tests.fakes.manual_clock import ManualClock
from tests.fakes.manual_steps import step_id
from worker_service.metrics import WORKER_METRICS, WorkerState
from worker_service.phase_board import PhaseBoard

ACTIVITY = WorkerActivity(
    state="SERVING",
    epoch=3,
    generation=2,
    step=41,
    phase=DevicePhase.COMPUTE,
    seconds_in_phase=0.5,
    waiting_on=None,
    kv_id="",
    is_hung=True,
)
MS = 1_000_000


def read(board: PhaseBoard, traffic: LinkTraffic | None = None, *, rank="stage 1"):
    """A registry of a worker in this state; asks for a sample by name and labels."""
    state = WorkerState(
        rank=rank,
        activity=ACTIVITY,
        board=board,
        traffic=traffic or LinkTraffic(),
        num_refused=4,
        num_malformed=5,
    )
    registry = CollectorRegistry()
    registry.register(TableCollector(WORKER_METRICS, lambda: state))
    return lambda name, **labels: registry.get_sample_value(name, {"rank": rank, **labels})


def test_the_worker_tells_its_place_and_state():
    """Whether it serves or hangs, for which coordinator and group, and how far it got."""
    sample = read(PhaseBoard(ManualClock()))
    expected = {
        "stepwire_worker_serving": 1,
        "stepwire_worker_hung": 1,
        "stepwire_epoch": 3,
        "stepwire_generation": 2,
        "stepwire_step": 41,
        "stepwire_tensor_refused_messages_total": 4,
        "stepwire_tensor_malformed_messages_total": 5,
    }
    assert {name: sample(name) for name in expected} == expected


def test_phases_of_a_step_are_told_apart():
    """Executing, sampling and the wait for the stage before have each their own seconds."""
    board = PhaseBoard(ManualClock())
    board.step_times.note_execute(
        StepTimings(compute_start_ns=0, compute_end_ns=8 * MS, wait_input_ns=3 * MS),
        has_waited=True,
    )
    board.step_times.note_sample(StepTimings(compute_start_ns=8 * MS, compute_end_ns=10 * MS))
    sample = read(board)
    assert sample("stepwire_step_seconds_sum", phase="execute") == pytest.approx(0.008)
    assert sample("stepwire_step_seconds_sum", phase="sample") == pytest.approx(0.002)
    assert sample("stepwire_tensor_wait_seconds_sum") == pytest.approx(0.003)


def test_the_first_stage_waits_for_nobody():
    """What never waited has no wait of 0 seconds."""
    board = PhaseBoard(ManualClock())
    board.step_times.note_execute(StepTimings(compute_end_ns=8 * MS), has_waited=False)
    assert read(board)("stepwire_tensor_wait_seconds_count") == 0


def test_seconds_of_the_device_thread_are_told_by_phase():
    """A phase counts once it is over; time within another one counts for that alone."""
    clock = ManualClock()
    board = PhaseBoard(clock)
    clock.advance(2.0)
    with board.computing(step_id(1), deadline=None):
        clock.advance(0.5)
        with board.during(DevicePhase.WAIT_INPUT, waiting_on=Rank(stage=0)):
            clock.advance(4.0)
        clock.advance(0.25)
    clock.advance(100.0)
    sample = read(board)
    spent = {
        phase: sample("stepwire_device_phase_seconds_total", phase=phase.value)
        for phase in DevicePhase
    }
    assert spent == {
        DevicePhase.IDLE: 2.0,
        DevicePhase.COMPUTE: 0.75,
        DevicePhase.WAIT_INPUT: 4.0,
        DevicePhase.SENDING: 0.0,
        DevicePhase.COMPILING: 0.0,
    }


def test_traffic_is_told_by_peer():
    """Bytes and messages of both directions."""
    traffic = LinkTraffic()
    traffic.note_sent(Rank(stage=2), 100)
    traffic.note_sent(Rank(stage=2), 50)
    traffic.note_received(Rank(stage=0), 7)
    sample = read(PhaseBoard(ManualClock()), traffic)
    assert sample("stepwire_tensor_sent_bytes_total", peer="stage 2") == 150
    assert sample("stepwire_tensor_sent_messages_total", peer="stage 2") == 2
    assert sample("stepwire_tensor_received_bytes_total", peer="stage 0") == 7
    assert sample("stepwire_tensor_received_messages_total", peer="stage 0") == 1
