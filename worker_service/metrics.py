"""Every metric of a worker process: names, and where their values are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from common.channels.link_traffic import LinkTraffic
from common.channels.zmq_channel import ZmqChannels
from common.distribution import Distribution
from common.metrics import MetricKind, MetricSpec, Samples
from common.worker_api import Rank, WorkerActivity
from worker_service.kernels.launches import num_launches
from worker_service.lifecycle import State
from worker_service.phase_board import PhaseBoard
from worker_service.worker import Worker

RANK = ("rank",)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker process knows of itself at a moment; rank is empty before a model is loaded."""

    rank: str
    activity: WorkerActivity
    board: PhaseBoard
    traffic: LinkTraffic
    num_refused: int = 0
    num_malformed: int = 0


def read_worker_state(worker: Worker, channels: ZmqChannels) -> WorkerState:
    """The state now."""
    return WorkerState(
        rank="" if worker.rank is None else str(worker.rank),
        activity=worker.activity(),
        board=worker.board,
        traffic=channels.traffic,
        num_refused=channels.num_refused,
        num_malformed=channels.num_malformed,
    )


def _value(
    kind: MetricKind, name: str, help_text: str, read: Callable[[WorkerState], float]
) -> MetricSpec[WorkerState]:
    """A metric of the rank alone."""
    return MetricSpec(
        name=name,
        kind=kind,
        help=help_text,
        labels=RANK,
        read=lambda state: {(state.rank,): read(state)},
    )


_gauge = partial(_value, MetricKind.GAUGE)
_counter = partial(_value, MetricKind.COUNTER)


def _per_link(
    name: str, help_text: str, counts: Callable[[LinkTraffic], Mapping[Rank, int]]
) -> MetricSpec[WorkerState]:
    def read(state: WorkerState) -> Samples:
        # A copy: the thread that counts may meet a new peer meanwhile.
        by_peer = dict(counts(state.traffic))
        return {(state.rank, str(peer)): float(count) for peer, count in by_peer.items()}

    return MetricSpec(
        name=name, kind=MetricKind.COUNTER, help=help_text, labels=("rank", "peer"), read=read
    )


def _step_seconds(state: WorkerState) -> dict[tuple[str, ...], Distribution]:
    times = state.board.step_times
    by_phase = {"execute": times.execute, "sample": times.sample}
    return {(state.rank, phase): seconds for phase, seconds in by_phase.items()}


def _phase_seconds(state: WorkerState) -> dict[tuple[str, ...], float]:
    spent = state.board.seconds_by_phase
    return {(state.rank, phase.value): seconds for phase, seconds in spent.items()}


WORKER_METRICS: tuple[MetricSpec[WorkerState], ...] = (
    _gauge(
        "stepwire_worker_serving",
        "1 while the worker is a member of a serving group.",
        lambda state: state.activity.state == State.SERVING.value,
    ),
    _gauge(
        "stepwire_worker_hung",
        "1 while a step is beyond its deadline on this worker.",
        lambda state: state.activity.is_hung,
    ),
    _gauge(
        "stepwire_epoch",
        "Incarnation of the coordinator that commands, 0 for none.",
        lambda state: state.activity.epoch,
    ),
    _gauge(
        "stepwire_generation",
        "Incarnation of the worker group, 0 for none.",
        lambda state: state.activity.generation,
    ),
    _gauge(
        "stepwire_step",
        "Number within the generation of the step that runs, or ran last.",
        lambda state: state.activity.step,
    ),
    MetricSpec(
        name="stepwire_step_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds of computing of each step's phase, waiting excluded.",
        labels=("rank", "phase"),
        read=_step_seconds,
    ),
    MetricSpec(
        name="stepwire_tensor_wait_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds each step waited for the tensors of the stage before.",
        labels=RANK,
        read=lambda state: {(state.rank,): state.board.step_times.input_wait},
    ),
    MetricSpec(
        name="stepwire_device_phase_seconds",
        kind=MetricKind.COUNTER,
        help="Seconds the device thread was in each phase, those over alone.",
        labels=("rank", "phase"),
        read=_phase_seconds,
    ),
    _counter(
        "stepwire_prefill_tokens",
        "Tokens computed for prompts, and again after preemptions.",
        lambda state: state.board.num_prefill_tokens,
    ),
    MetricSpec(
        name="stepwire_graph_steps",
        kind=MetricKind.COUNTER,
        help="Steps with tokens, by how much of them a captured graph replayed.",
        labels=("rank", "mode"),
        read=lambda state: {
            (state.rank, mode): float(count)
            for mode, count in dict(state.board.num_graph_steps).items()
        },
    ),
    _counter(
        "stepwire_graph_padding_tokens",
        "Tokens computed only to fill the shapes of graphs.",
        lambda state: state.board.num_padding_tokens,
    ),
    MetricSpec(
        name="stepwire_kernel_launches",
        kind=MetricKind.COUNTER,
        help="Launches of each Triton kernel.",
        labels=("rank", "kernel"),
        read=lambda state: {
            (state.rank, kernel): float(count) for kernel, count in num_launches().items()
        },
    ),
    _per_link(
        "stepwire_tensor_sent_bytes",
        "Bytes of tensors sent to a peer.",
        lambda traffic: traffic.num_bytes_sent,
    ),
    _per_link(
        "stepwire_tensor_sent_messages",
        "Messages of tensors sent to a peer.",
        lambda traffic: traffic.num_messages_sent,
    ),
    _per_link(
        "stepwire_tensor_received_bytes",
        "Bytes of tensors received from a peer.",
        lambda traffic: traffic.num_bytes_received,
    ),
    _per_link(
        "stepwire_tensor_received_messages",
        "Messages of tensors received from a peer.",
        lambda traffic: traffic.num_messages_received,
    ),
    _counter(
        "stepwire_tensor_refused_messages",
        "Messages of tensors dropped since they belong to another generation or stage.",
        lambda state: state.num_refused,
    ),
    _counter(
        "stepwire_tensor_malformed_messages",
        "Messages on the tensor socket dropped since they are no tensors of a step.",
        lambda state: state.num_malformed,
    ),
)
