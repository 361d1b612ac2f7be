"""What do metrics cost a step, a token and a scrape? CPU time of what is counted, without workers.

A step in which every request gets a token is counted as the loop counts it; a scrape is what
Prometheus reads from a coordinator. Run as `python -m tests.benchmarks.metrics_cost` from the
repository's root.
"""

import time
from collections.abc import Callable
from statistics import median

from prometheus_client import generate_latest

from common.call_times import CallTimes
from common.step import StepTimings
from common.worker_api import Rank
from coordinator.api.metrics import coordinator_registry
from coordinator.api.serving_state import ServingState
from coordinator.engine.measures import Measures
from coordinator.engine.request_times import RequestTimes
from tests.benchmarks.report import Row, report
from tests.fakes.cluster_states import REBUILDING

NUM_RUNNING = (1, 32, 256, 1024)
NUM_STEPS = 1000
STEP_SECONDS = 0.016
TIMINGS = {Rank(stage=stage): StepTimings(compute_end_ns=8_000_000) for stage in range(2)}


def cost(num_running: int) -> Row:
    """Median CPU microseconds of counting a step of so many decodes on two stages."""
    measures = Measures()
    requests = [RequestTimes(arrived=0.0) for _ in range(num_running)]
    steps = iter(range(1, NUM_STEPS + 2))

    def count_step() -> None:
        measures.requests.note_tokens(requests, now=next(steps) * STEP_SECONDS)
        measures.steps.note_answered(
            TIMINGS, num_tokens=num_running, seconds=STEP_SECONDS, is_last=False
        )

    count_step()
    step_us = _microseconds(count_step, times=NUM_STEPS)
    state = ServingState(status=REBUILDING, measures=measures, max_model_len=8192)
    registry = coordinator_registry(lambda: state, calls=CallTimes(), http=CallTimes())
    return {
        "running": num_running,
        "step us": step_us,
        "token us": step_us / num_running,
        "share of a 16 ms step %": step_us / STEP_SECONDS / 1e4,
        "scrape us": _microseconds(lambda: generate_latest(registry), times=50),
    }


def _microseconds(work: Callable[[], object], *, times: int) -> float:
    spent: list[float] = []
    for _ in range(times):
        started = time.thread_time()
        work()
        spent.append(time.thread_time() - started)
    return median(spent) * 1e6


def main() -> None:
    """Measure from one request to a thousand."""
    report("CPU of counting a step, and of a scrape", [cost(running) for running in NUM_RUNNING])


if __name__ == "__main__":
    main()
