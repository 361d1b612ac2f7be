"""How busy the service is, as gateways ask of it to choose among replicas."""

from datetime import UTC, datetime

from smg_grpc_proto import vllm_engine_pb2 as pb

from common.clock import Clock
from coordinator.engine.cluster_status import ClusterStatus

SHORTEST_INTERVAL = 1.0


class GenerationRate:
    """Tokens generated per second, measured between the times it is asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measured_at = clock.monotonic()
        self._num_generated = 0
        self._rate = 0.0

    def update(self, num_generated: int) -> float:
        """The rate up to now, of the last interval when that is less than a second old."""
        now = self._clock.monotonic()
        if (seconds := now - self._measured_at) >= SHORTEST_INTERVAL:
            self._rate = (num_generated - self._num_generated) / seconds
            self._measured_at, self._num_generated = now, num_generated
        return self._rate


def encode_loads(
    status: ClusterStatus, *, rate: float, version: str, clock: Clock
) -> pb.GetLoadsResponse:
    """The load of the one replica."""
    return pb.GetLoadsResponse(
        timestamp=datetime.fromtimestamp(clock.unix_time(), UTC).isoformat(),
        version=version,
        dp_rank_count=1,
        loads=[_replica_load(status, rate=rate)],
    )


def _replica_load(status: ClusterStatus, *, rate: float) -> pb.SchedulerLoad:
    num_used_blocks = status.num_blocks - status.num_free_blocks
    return pb.SchedulerLoad(
        num_running_reqs=status.num_running,
        num_waiting_reqs=status.num_waiting,
        num_total_reqs=status.num_running + status.num_waiting,
        num_used_tokens=num_used_blocks * status.block_size,
        max_total_num_tokens=status.num_blocks * status.block_size,
        token_usage=status.kv_usage,
        gen_throughput=rate,
        cache_hit_rate=status.prefix_hit_ratio,
        utilization=status.num_running / status.max_num_seqs if status.max_num_seqs else 0.0,
        max_running_requests=status.max_num_seqs,
        num_waiting_uncached_tokens=status.num_waiting_tokens,
    )
