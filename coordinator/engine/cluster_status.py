"""A replica as an operator sees it; plain values."""

from dataclasses import asdict, dataclass
from typing import Any

from coordinator.executors.progress import ReplicaPhase
from coordinator.executors.topology import WorkerTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGeneration:
    """A generation that ended by a failure: rank and cause, and the Unix time in seconds."""

    generation: int
    cause: str
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What is served, by whom, how far it got and how full it is.

    epoch, generation and step name the last committed step, 0 before there is one, and
    last_step_age its age in seconds. num_blocks counts the KV cache blocks that can be allocated,
    the null block excluded. lost_generations stand newest first. num_invalid_steps: steps that
    workers refused as invalid; num_state_checks and num_state_drifts: comparisons of the
    scheduler's books with the workers', and how many found a difference. num_prompt_tokens: of the
    requests admitted so far; num_cached_tokens: those of them found in the prefix cache.
    num_preemptions: how often a request lost its blocks to another one. num_drafts: rows that checked
    draft tokens, num_draft_tokens of them, of which num_accepted_tokens were right; by_position: how many
    of these stood first, second and so on. block_size: token slots of a
    block. max_num_seqs: most requests that run at once. num_waiting_tokens: known tokens of the
    requests that wait.
    """

    model: str
    is_serving: bool = False
    phase: ReplicaPhase = ReplicaPhase.STARTING
    detail: str = ""
    epoch: int = 0
    generation: int = 0
    step: int = 0
    last_step_age: float | None = None
    workers: tuple[WorkerTopology, ...] = ()
    num_waiting: int = 0
    num_running: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    lost_generations: tuple[LostGeneration, ...] = ()
    num_invalid_steps: int = 0
    num_state_checks: int = 0
    num_state_drifts: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_by_position: tuple[int, ...] = ()
    block_size: int = 0
    max_num_seqs: int = 0
    num_waiting_tokens: int = 0

    @property
    def prefix_hit_ratio(self) -> float:
        """Share of the prompt tokens that were found in the prefix cache; 0 before any."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache blocks that requests hold; 0 before there are blocks."""
        return (
            (self.num_blocks - self.num_free_blocks) / self.num_blocks if self.num_blocks else 0.0
        )


def plain_status(status: ClusterStatus) -> dict[str, Any]:
    """The fields by name, in values that JSON has."""
    return asdict(status) | {"phase": status.phase.value}
