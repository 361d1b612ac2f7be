"""The metrics of workers, generations and steps, which are ours alone."""

from collections.abc import Mapping

from common.distribution import Distribution
from common.metrics import MetricKind, MetricSpec
from common.worker_api import Rank
from coordinator.api.serving_state import (
    ServingState,
    Spec,
    single_counter,
    single_gauge,
    single_histogram,
)

RANK = ("rank",)


def _by_rank(seconds: Mapping[Rank, Distribution]) -> dict[tuple[str, ...], Distribution]:
    return {(str(rank),): spent for rank, spent in seconds.items()}


def _workers_up(state: ServingState) -> dict[tuple[str, ...], float]:
    return {
        (str(worker.rank), worker.address, worker.device): float(not worker.cause)
        for worker in state.status.workers
    }


def _bubbles(state: ServingState) -> dict[tuple[str, ...], float]:
    return {(str(rank),): spent for rank, spent in state.measures.steps.bubble_seconds.items()}


def _refused(state: ServingState) -> dict[tuple[str, ...], float]:
    refused = state.measures.requests.num_refused
    return {(reason,): float(count) for reason, count in refused.items()}


CLUSTER_METRICS: tuple[Spec, ...] = (
    single_gauge(
        "stepwire_serving",
        "1 while requests are accepted.",
        lambda state: state.status.is_serving,
    ),
    single_gauge(
        "stepwire_epoch",
        "Incarnation of the coordinator among those its workers have seen.",
        lambda state: state.status.epoch,
    ),
    single_gauge(
        "stepwire_generation",
        "Incarnation of the worker group.",
        lambda state: state.status.generation,
    ),
    single_gauge(
        "stepwire_step",
        "Number of the last committed step within its generation.",
        lambda state: state.status.step,
    ),
    single_gauge(
        "stepwire_last_step_age_seconds",
        "Seconds since a step was committed; grows while nothing is asked.",
        lambda state: state.status.last_step_age,
    ),
    MetricSpec(
        name="stepwire_worker_up",
        kind=MetricKind.GAUGE,
        help="1 for each worker of the group, 0 once it is lost.",
        labels=("rank", "address", "device"),
        read=_workers_up,
    ),
    single_counter(
        "stepwire_generations_lost",
        "Worker groups that ended by a failure.",
        lambda state: state.measures.num_generations_lost,
    ),
    single_counter(
        "stepwire_rebuilds",
        "Worker groups that took the place of a lost one.",
        lambda state: state.measures.num_rebuilds,
    ),
    MetricSpec(
        name="stepwire_requests_refused",
        kind=MetricKind.COUNTER,
        help="Requests that were not accepted, by error; Overloaded: the queue was full.",
        labels=("reason",),
        read=_refused,
    ),
    single_counter(
        "stepwire_invalid_steps",
        "Steps that workers refused as invalid: bugs of ours.",
        lambda state: state.status.num_invalid_steps,
    ),
    single_counter(
        "stepwire_state_checks",
        "Comparisons of the scheduler's books with the workers'.",
        lambda state: state.status.num_state_checks,
    ),
    single_counter(
        "stepwire_state_drifts",
        "Comparisons that found a difference.",
        lambda state: state.status.num_state_drifts,
    ),
    single_histogram(
        "stepwire_step_round_trip_seconds",
        "Seconds from sending a step to committing it.",
        lambda state: state.measures.steps.round_trip,
    ),
    MetricSpec(
        name="stepwire_rank_compute_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds a rank computes for a step, waiting excluded.",
        labels=RANK,
        read=lambda state: _by_rank(state.measures.steps.compute),
    ),
    MetricSpec(
        name="stepwire_rank_input_wait_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds a rank waits for other stages, for a step.",
        labels=RANK,
        read=lambda state: _by_rank(state.measures.steps.input_wait),
    ),
    MetricSpec(
        name="stepwire_pipeline_bubble_seconds",
        kind=MetricKind.COUNTER,
        help="Seconds a rank computed nothing between two steps while there was work.",
        labels=RANK,
        read=_bubbles,
    ),
)
