"""What a configuration starts: flags of local workers, kinds that are not there."""

import pytest

from common.config import ClusterConfig, CoordinatorConfig, ServeConfig
from common.errors import ConfigError
from coordinator.executors.launch import shared_flags, worker_fleet
from coordinator.executors.local_process import available_cores, worker_flags
from coordinator.executors.remote import RemoteWorker


def test_local_workers_share_the_cores():
    """Without --threads each of two workers gets half of them, and at least one."""
    flags = worker_flags(ClusterConfig(pp=2, device="cpu"), 0)
    assert f"--threads={max(1, available_cores() // 2)}" in flags
    assert "--threads=1" in worker_flags(ClusterConfig(pp=10_000), 0)


def test_threads_and_devices_are_passed_on():
    """An explicit number of threads is per worker, and each stage gets its own device."""
    cluster = ClusterConfig(pp=2, threads=3, devices=("cuda:0", "cuda:1"))
    assert {"--threads=3", "--device=cuda:1"} <= set(worker_flags(cluster, 1))


def test_local_workers_end_with_their_coordinator():
    """Every child is told to watch its standard input and to listen on a free loopback port."""
    assert {"--exit-with-stdin", "--listen=127.0.0.1:0"} <= set(worker_flags(ClusterConfig(), 0))


def test_local_workers_log_as_their_coordinator_does():
    """One terminal shows lines of one form and level."""
    flags = shared_flags(ServeConfig(log_format="text", log_level="WARNING"))
    assert flags == ["--log-format=text", "--log-level=WARNING"]


async def test_remote_workers_keep_the_order_of_the_addresses():
    """The list of --workers is the list of stages; nobody is called yet."""
    fleet = worker_fleet(CoordinatorConfig(cluster=ClusterConfig(workers=("a:1", "b:2"))))
    workers = await fleet.connect()
    assert [worker.address for worker in workers] == ["a:1", "b:2"]
    assert all(isinstance(worker, RemoteWorker) for worker in workers)
    await fleet.close()


async def test_remote_workers_of_the_next_generation_are_connected_anew():
    """A connection that was lost once stays lost, so that no step of before is answered later."""
    fleet = worker_fleet(CoordinatorConfig(cluster=ClusterConfig(workers=("a:1",))))
    (first,) = await fleet.connect()
    (second,) = await fleet.connect()
    assert first is not second
    await fleet.close()


def test_executor_that_is_not_there_is_refused():
    """The message names it and what to use instead."""
    config = CoordinatorConfig(cluster=ClusterConfig(executor="ray"))
    with pytest.raises(ConfigError, match="executor ray is not available: use local or remote"):
        worker_fleet(config)
