"""Configuration to workers: the one place that tells executor kinds apart."""

from common.config import CoordinatorConfig
from common.errors import ConfigError
from coordinator.executors.fleet import InProcessFleet, LocalFleet, RemoteFleet, WorkerFleet


def worker_fleet(config: CoordinatorConfig) -> WorkerFleet:
    """The workers of a replica, none of them started or called yet."""
    cluster = config.cluster
    match cluster.executor_kind:
        case "uniproc":
            return InProcessFleet(cluster)
        case "local":
            endpoint = config.serve.otlp_traces_endpoint
            flags = () if endpoint is None else (f"--otlp-traces-endpoint={endpoint}",)
            return LocalFleet(cluster, more_flags=flags)
        case "remote":
            return RemoteFleet(cluster.workers)
        case kind:
            raise ConfigError(f"executor {kind} is not available: use local or remote")
