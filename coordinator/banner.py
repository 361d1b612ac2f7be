"""A replica's topology as a few lines for people."""

from collections.abc import Sequence

from coordinator.executors.topology import WorkerTopology


def topology_lines(model: str, workers: Sequence[WorkerTopology]) -> list[str]:
    """The model and one line a worker: place, address, device, layers and parameters held."""
    title = f"{model} on {len(workers)} worker{'' if len(workers) == 1 else 's'}"
    return [title, *(_worker_line(worker) for worker in workers)]


def _worker_line(worker: WorkerTopology) -> str:
    layers = f"layers {worker.first_layer}-{worker.end_layer - 1}"
    megabytes = f"{worker.parameter_bytes / 1e6:.1f} MB of parameters"
    where = worker.address or "in this process"
    line = f"  {worker.rank}  {where}  {worker.device}  {layers}  {megabytes}"
    return f"{line}  LOST: {worker.cause}" if worker.cause else line
