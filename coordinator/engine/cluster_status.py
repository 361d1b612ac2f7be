"""A replica as an operator sees it; plain values."""

from dataclasses import dataclass

from coordinator.executors.topology import WorkerTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What is served, by whom, how far it got and how full it is.

    epoch, generation and step name the last committed step, 0 before there is one. num_blocks counts
    the KV cache blocks that can be allocated, the null block excluded.
    """

    model: str
    is_serving: bool = False
    epoch: int = 0
    generation: int = 0
    step: int = 0
    workers: tuple[WorkerTopology, ...] = ()
    num_waiting: int = 0
    num_running: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
