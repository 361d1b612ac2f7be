"""A worker inside the coordinator's process: the one place where the coordinator loads torch."""

from common.channels.channel import InMemoryHub
from common.config import ClusterConfig, WorkerConfig
from common.worker_api import WorkerApi


def in_process_worker(config: ClusterConfig) -> WorkerApi:
    """Make the one worker of executor `uniproc`; it computes on a thread of its own."""
    # The import stands here so that every other executor leaves the coordinator free of torch.
    from worker_service.worker import Worker

    device = config.devices[0] if config.devices else config.device
    channels = InMemoryHub().channels("uniproc")
    worker = WorkerConfig(
        device=device,
        threads=config.threads,
        attention_backend=config.attention_backend,
        cudagraph_mode=config.cudagraph_mode,
    )
    return Worker(worker, channels)
