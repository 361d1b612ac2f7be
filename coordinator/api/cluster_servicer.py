"""The gRPC service Cluster: what an operator asks of the coordinator."""

from collections.abc import Callable
from typing import Any

import grpc
from stepwire.v1 import cluster_pb2 as pb
from stepwire.v1 import cluster_pb2_grpc

from common.codecs.place_codec import encode_rank
from coordinator.engine.cluster_status import ClusterStatus

Context = grpc.aio.ServicerContext[Any, Any]

SERVING, LOST = "SERVING", "LOST"


class ClusterServicer(cluster_pb2_grpc.ClusterServicer):
    """Tells the topology and its state, from the coordinator's memory, never by asking workers."""

    def __init__(self, read_status: Callable[[], ClusterStatus]) -> None:
        """read_status gives the state now."""
        self._read_status = read_status

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        """The topology and its state."""
        return encode_status(self._read_status())


def encode_status(status: ClusterStatus) -> pb.StatusResponse:
    """The response of one state."""
    return pb.StatusResponse(
        model=status.model,
        serving=status.is_serving,
        epoch=status.epoch,
        generation=status.generation,
        step=status.step,
        workers=[
            pb.WorkerStatus(
                rank=encode_rank(worker.rank),
                address=worker.address,
                incarnation=worker.incarnation,
                device=worker.device,
                first_layer=worker.first_layer,
                end_layer=worker.end_layer,
                parameter_bytes=worker.parameter_bytes,
                state=LOST if worker.cause else SERVING,
                cause=worker.cause,
                phase=worker.phase,
                seconds_in_phase=worker.seconds_in_phase,
                num_loads=worker.num_loads,
                num_prefill_tokens=worker.num_prefill_tokens,
            )
            for worker in status.workers
        ],
        num_waiting=status.num_waiting,
        num_running=status.num_running,
        num_blocks=status.num_blocks,
        num_free_blocks=status.num_free_blocks,
        phase=status.phase.value,
        detail=status.detail,
        last_step_age_seconds=status.last_step_age,
        lost_generations=[
            pb.LostGeneration(generation=lost.generation, cause=lost.cause, ended_at=lost.ended_at)
            for lost in status.lost_generations
        ],
        num_invalid_steps=status.num_invalid_steps,
        num_state_checks=status.num_state_checks,
        num_state_drifts=status.num_state_drifts,
        num_prompt_tokens=status.num_prompt_tokens,
        num_cached_tokens=status.num_cached_tokens,
        num_generated_tokens=status.num_generated_tokens,
        num_preemptions=status.num_preemptions,
    )
