"""States of a cluster, written by hand."""

from common.worker_api import Rank
from coordinator.engine.cluster_status import ClusterStatus, LostGeneration
from coordinator.executors.progress import ReplicaPhase
from coordinator.executors.topology import WorkerTopology

REBUILDING = ClusterStatus(
    model="tiny",
    phase=ReplicaPhase.WAITING,
    detail="waiting for stage 1 (have 1 of 2)",
    epoch=3,
    generation=2,
    step=412,
    last_step_age=1.26,
    workers=tuple(
        WorkerTopology(
            rank=Rank(stage=stage),
            address=f"10.0.0.{stage}:50061",
            device="cpu",
            incarnation="ab12",
            first_layer=2 * stage,
            end_layer=2 * stage + 2,
            parameter_bytes=1000,
            cause=cause,
            num_loads=1 + stage,
            phase=phase,
            seconds_in_phase=0.5,
            num_prefill_tokens=900 + stage,
        )
        for stage, cause, phase in ((0, "", "COMPUTE"), (1, "killed by SIGKILL", ""))
    ),
    num_waiting=1,
    num_running=2,
    num_blocks=127,
    num_free_blocks=100,
    lost_generations=(LostGeneration(generation=2, cause="stage 1 lost", ended_at=0.0),),
    num_invalid_steps=1,
    num_state_checks=9,
    num_prompt_tokens=2000,
    num_cached_tokens=500,
    num_generated_tokens=320,
    num_preemptions=4,
)
"""A group of two that lost its second rank; every field has a value of its own."""
