"""The topology reads as a line a worker."""

from common.worker_api import Rank
from coordinator.banner import topology_lines
from coordinator.executors.topology import WorkerTopology


def worker(stage: int, *, cause: str = "", address: str = "10.0.0.1:50061") -> WorkerTopology:
    """A stage of 15 layers."""
    return WorkerTopology(
        rank=Rank(stage=stage),
        address=address,
        device="cpu",
        incarnation="ab12",
        first_layer=15 * stage,
        end_layer=15 * (stage + 1),
        parameter_bytes=134_500_000,
        cause=cause,
    )


def test_a_line_a_worker():
    """Every worker is named with place, address, device, layers and size; a lost one with the cause."""
    assert topology_lines("tiny", [worker(0), worker(1, cause="exited")]) == [
        "tiny on 2 workers",
        "  stage 0  10.0.0.1:50061  cpu  layers 0-14  134.5 MB of parameters",
        "  stage 1  10.0.0.1:50061  cpu  layers 15-29  134.5 MB of parameters  LOST: exited",
    ]


def test_worker_inside_the_coordinator():
    """A worker without an address is in this process."""
    lines = topology_lines("tiny", [worker(0, address="")])
    assert lines[0] == "tiny on 1 worker"
    assert "in this process" in lines[1]
