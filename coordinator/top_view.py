"""The state of a cluster as a screen for terminals: load, ranks, failures. Reads no clock."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.engine.cluster_status import ClusterStatus, LostGeneration
from coordinator.engine.load_history import LoadSample
from coordinator.executors.progress import ReplicaPhase
from coordinator.executors.topology import WorkerTopology

BARS = "▁▂▃▄▅▆▇█"
CHART_WIDTH = 40
STYLES = {ReplicaPhase.SERVING: "bold green", ReplicaPhase.WAITING: "bold red"}
BUSY = "bold yellow"


def top_view(
    status: ClusterStatus, samples: Sequence[LoadSample], *, now: float, trouble: str = ""
) -> RenderableType:
    """One screen; now is Unix time, trouble why the status is no longer that of now."""
    parts: list[RenderableType] = [_title(status)]
    if trouble:
        parts.append(Text(trouble, style="bold red"))
    elif status.detail:
        parts.append(Text(status.detail, style=STYLES.get(status.phase, BUSY)))
    parts += [_below(_load(status, samples)), _below(_workers(status))]
    if status.lost_generations:
        parts.append(_below(_failures(status.lost_generations, now=now)))
    return Group(*parts)


def spark_line(values: Sequence[float], *, width: int = CHART_WIDTH) -> str:
    """The last values as bars, the highest of them as a full one."""
    shown = values[-width:]
    peak = max(shown, default=0.0)
    if peak <= 0:
        return BARS[0] * len(shown)
    return "".join(BARS[round(value / peak * (len(BARS) - 1))] for value in shown)


def _below(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


def _title(status: ClusterStatus) -> RenderableType:
    age = "" if status.last_step_age is None else f", {status.last_step_age:.1f} s ago"
    where = f"epoch {status.epoch}  generation {status.generation}  step {status.step:,}{age}"
    return Text("  ").join(
        [
            Text(status.model, style="bold"),
            Text(f"● {status.phase.value}", style=STYLES.get(status.phase, BUSY)),
            Text(where if status.epoch else "", style="dim"),
        ]
    )


def _load(status: ClusterStatus, samples: Sequence[LoadSample]) -> RenderableType:
    last = samples[-1] if samples else None
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column(width=CHART_WIDTH, no_wrap=True)
    table.add_column(style="dim")
    table.add_row(
        "tokens/s",
        f"{last.generated_rate:,.0f}" if last else "-",
        Text(spark_line([sample.generated_rate for sample in samples]), style="blue"),
        f"{last.prompt_rate:,.0f} prompt tokens/s" if last else "",
    )
    table.add_row(
        "requests",
        f"{status.num_running:,}",
        Text(spark_line([float(sample.num_running) for sample in samples]), style="blue"),
        f"{status.num_waiting:,} waiting",
    )
    num_used = status.num_blocks - status.num_free_blocks
    table.add_row(
        "KV cache",
        f"{status.kv_usage:.0%}",
        _bar(status.kv_usage),
        f"{num_used:,} of {status.num_blocks:,} blocks, {_preemptions(status)}",
    )
    table.add_row(
        "prefix hits",
        f"{status.prefix_hit_ratio:.0%}",
        _bar(status.prefix_hit_ratio),
        f"{status.num_cached_tokens:,} of {status.num_prompt_tokens:,} prompt tokens",
    )
    return table


def _preemptions(status: ClusterStatus) -> str:
    return f"{status.num_preemptions:,} preemption{'' if status.num_preemptions == 1 else 's'}"


def _bar(share: float) -> RenderableType:
    return ProgressBar(
        total=1.0, completed=share, width=CHART_WIDTH, complete_style="blue", finished_style="blue"
    )


def _workers(status: ClusterStatus) -> RenderableType:
    if not status.workers:
        return Text("no worker has joined yet", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("RANK", "ADDRESS", "DEVICE", "LAYERS", "WEIGHTS"):
        table.add_column(name, no_wrap=True)
    table.add_column("STATE", ratio=1)
    for worker in status.workers:
        table.add_row(
            str(worker.rank),
            worker.address or "in the coordinator",
            worker.device,
            f"{worker.first_layer}-{worker.end_layer - 1}",
            f"{worker.parameter_bytes / 1e6:,.0f} MB",
            _state(worker, status),
        )
    return table


def _state(worker: WorkerTopology, status: ClusterStatus) -> Text:
    if worker.cause:
        return Text(f"● LOST: {worker.cause}", style="bold red")
    doing = f"{worker.phase.lower()} {worker.seconds_in_phase:.1f} s" if worker.phase else "ready"
    return Text(f"● {doing}", style="green" if status.is_serving else "yellow")


def _failures(losses: Sequence[LostGeneration], *, now: float) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("LOST", no_wrap=True)
    table.add_column("GENERATION", justify="right")
    table.add_column("CAUSE", ratio=1)
    for lost in losses:
        age = f"{max(0.0, now - lost.ended_at):,.0f} s ago"
        table.add_row(age, str(lost.generation), Text(lost.cause, style="red"))
    return table
