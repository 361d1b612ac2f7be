"""The text of every metric that a coordinator and a worker can tell, each with at least one sample."""

from prometheus_client import generate_latest

from common.call_times import CallTimes
from common.channels.link_traffic import LinkTraffic
from common.metrics import TableCollector, new_registry
from common.step import StepTimings
from common.worker_api import DevicePhase, Rank, WorkerActivity
from coordinator.api.metrics import coordinator_registry
from coordinator.api.serving_state import ServingState
from coordinator.engine.measures import Measures
from tests.fakes.cluster_states import REBUILDING
from tests.fakes.manual_clock import ManualClock
from worker_service.metrics import WORKER_METRICS, WorkerState
from worker_service.phase_board import PhaseBoard


def coordinator_exposition() -> str:
    """What a coordinator answers."""
    measures, calls, http = Measures(), CallTimes(), CallTimes()
    measures.requests.num_refused["Overloaded"] += 1
    measures.steps.note_answered({Rank(): StepTimings()}, num_tokens=1, seconds=0.1, is_last=False)
    http.note("/v1/completions", outcome="200", seconds=0.5)
    calls.note("stepwire.v1.Inference/Generate", outcome="OK", seconds=0.5)
    state = ServingState(status=REBUILDING, measures=measures, max_model_len=8192)
    return generate_latest(coordinator_registry(lambda: state, calls=calls, http=http)).decode()


def worker_exposition() -> str:
    """What a worker answers."""
    traffic = LinkTraffic()
    traffic.note_sent(Rank(stage=1), 100)
    traffic.note_received(Rank(stage=1), 100)
    activity = WorkerActivity(
        state="SERVING",
        epoch=1,
        generation=1,
        step=1,
        phase=DevicePhase.IDLE,
        seconds_in_phase=0.5,
        waiting_on=None,
        kv_id="",
        is_hung=False,
    )
    board = PhaseBoard(ManualClock())
    state = WorkerState(rank="stage 0", activity=activity, board=board, traffic=traffic)
    registry = new_registry(TableCollector(WORKER_METRICS, lambda: state))
    return generate_latest(registry).decode()
