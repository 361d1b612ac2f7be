"""How far a worker group has come on its way to its first step; plain values."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from common.worker_api import Rank


class ReplicaPhase(Enum):
    """What a replica is doing, in one word for operators."""

    STARTING = "STARTING"
    WAITING = "WAITING"
    LOADING = "LOADING"
    SERVING = "SERVING"
    DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The phase, and the same in words."""

    phase: ReplicaPhase
    detail: str


ProgressListener = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """The listener of who does not care."""


def waiting_for(missing: Collection[Rank], *, num_ranks: int) -> Progress:
    """These ranks have not answered yet, e.g. "waiting for stage 1 (have 1 of 2)"."""
    names = ", ".join(str(rank) for rank in sorted(missing))
    have = num_ranks - len(missing)
    return Progress(
        phase=ReplicaPhase.WAITING, detail=f"waiting for {names} (have {have} of {num_ranks})"
    )


def loading(ranks: Collection[Rank]) -> Progress:
    """These ranks read their parameters; with none the group only joins."""
    names = ", ".join(str(rank) for rank in sorted(ranks))
    return Progress(
        phase=ReplicaPhase.LOADING, detail=f"loading {names}" if names else "joining the workers"
    )


def preparing(detail: str) -> Progress:
    """Parameters are held, and this is still to be done before requests are accepted."""
    return Progress(phase=ReplicaPhase.LOADING, detail=detail)
