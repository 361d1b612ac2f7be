"""A worker group as an operator sees it; plain values."""

from dataclasses import dataclass

from common.worker_api import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTopology:
    """One rank as an operator sees it; `cause` is empty while it serves."""

    rank: Rank
    address: str
    device: str
    incarnation: str
    first_layer: int
    end_layer: int
    parameter_bytes: int
    cause: str
