"""Configuration to workers: the one place that tells executor kinds apart."""

from collections.abc import Sequence

from common.config import CoordinatorConfig
from common.errors import ConfigError
from common.worker_api import WorkerApi
from coordinator.executors.in_process import in_process_worker
from coordinator.executors.local_process import start_local_workers
from coordinator.executors.remote import RemoteWorker


async def launch_workers(config: CoordinatorConfig) -> Sequence[WorkerApi]:
    """The workers of a replica in stage order; whoever gets them closes them."""
    cluster = config.cluster
    match cluster.executor_kind:
        case "uniproc":
            return [in_process_worker(cluster)]
        case "local":
            return await start_local_workers(cluster)
        case "remote":
            return [RemoteWorker(address) for address in cluster.workers]
        case kind:
            raise ConfigError(f"executor {kind} is not available: use local or remote")
