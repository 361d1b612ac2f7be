"""What a coordinator says of itself: as lines for people, and as JSON for programs."""

import json
from datetime import UTC, datetime

from coordinator.engine.cluster_status import ClusterStatus, LostGeneration, plain_status
from coordinator.executors.topology import WorkerTopology


def status_lines(status: ClusterStatus) -> list[str]:
    """The model and its phase, one line a worker, the load, and the generations lost, newest first."""
    lines = [
        f"{status.model}  {status.phase.value}" + (f": {status.detail}" if status.detail else "")
    ]
    if status.epoch:
        age = "" if status.last_step_age is None else f", {status.last_step_age:.1f} s ago"
        lines.append(
            f"  epoch {status.epoch}  generation {status.generation}  step {status.step}{age}"
        )
    lines += [_worker_line(worker) for worker in status.workers]
    if status.num_blocks:
        lines.append(
            f"  requests: {status.num_running} running, {status.num_waiting} waiting  "
            f"KV cache blocks: {status.num_free_blocks} of {status.num_blocks} free"
        )
    if status.num_prompt_tokens:
        lines.append(
            f"  tokens: {status.num_prompt_tokens} in prompts "
            f"({status.prefix_hit_ratio:.0%} from the prefix cache), "
            f"{status.num_generated_tokens} generated  preemptions: {status.num_preemptions}"
        )
    if status.num_invalid_steps or status.num_state_drifts:
        lines.append(
            f"  invalid steps: {status.num_invalid_steps}  state drifts: {status.num_state_drifts}"
        )
    return lines + [_lost_line(lost) for lost in status.lost_generations]


def status_json(status: ClusterStatus) -> str:
    """One object with the fields of ClusterStatus."""
    return json.dumps(plain_status(status))


def _worker_line(worker: WorkerTopology) -> str:
    where = worker.address or "in this process"
    layers = f"layers {worker.first_layer}-{worker.end_layer - 1}"
    loads = f"{worker.num_loads} load{'' if worker.num_loads == 1 else 's'}"
    line = f"  {worker.rank}  {where}  {worker.device}  {layers}  {loads}"
    if worker.cause:
        return f"{line}  LOST: {worker.cause}"
    return f"{line}  {worker.phase} {worker.seconds_in_phase:.1f} s" if worker.phase else line


def _lost_line(lost: LostGeneration) -> str:
    ended = datetime.fromtimestamp(lost.ended_at, UTC).isoformat(sep=" ", timespec="seconds")
    return f"  lost generation {lost.generation}  {ended}  {lost.cause}"
