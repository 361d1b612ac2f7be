"""A worker group as an operator sees it; plain values."""

from dataclasses import dataclass

from common.worker_api import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTopology:
    """One rank as an operator sees it; `cause` is empty while it serves.

    num_loads: how often its process has read parameters. phase: what its device thread is doing,
    empty while nobody hears from it, and for how many seconds. num_prefill_tokens: tokens its process
    has computed for prompts, and again after preemptions.
    """

    rank: Rank
    address: str
    device: str
    incarnation: str
    first_layer: int
    end_layer: int
    parameter_bytes: int
    cause: str
    num_loads: int = 0
    phase: str = ""
    seconds_in_phase: float = 0.0
    num_prefill_tokens: int = 0
