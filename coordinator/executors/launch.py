"""Configuration to workers: the one place that tells executor kinds apart."""

from common.config import CoordinatorConfig, ServeConfig
from common.errors import ConfigError
from coordinator.executors.fleet import InProcessFleet, LocalFleet, RemoteFleet, WorkerFleet


def worker_fleet(config: CoordinatorConfig) -> WorkerFleet:
    """The workers of a replica, none of them started or called yet."""
    cluster = config.cluster
    match cluster.executor_kind:
        case "uniproc":
            return InProcessFleet(cluster)
        case "local":
            return LocalFleet(cluster, more_flags=shared_flags(config.serve))
        case "remote":
            return RemoteFleet(cluster.workers)
        case kind:
            raise ConfigError(f"executor {kind} is not available: use local or remote")


def shared_flags(config: ServeConfig) -> list[str]:
    """What local workers do as their coordinator does."""
    endpoint = config.otlp_traces_endpoint
    traces = [] if endpoint is None else [f"--otlp-traces-endpoint={endpoint}"]
    return [f"--log-format={config.log_format}", f"--log-level={config.log_level}", *traces]
