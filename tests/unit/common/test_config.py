"""The slices: what they refuse when made, and the values they derive."""

import pytest

from common.config import (
    CacheConfig,
    ClusterConfig,
    ModelConfig,
    ScheduleConfig,
    ServeConfig,
    WorkerConfig,
    join_address,
    split_address,
)
from common.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {"dtype": "int8"}, "dtype must be one of"),
        (ModelConfig, {"quantization": "int3"}, "quantization must be one of none, int8, int4"),
        (ModelConfig, {"model": ""}, "model must not be empty"),
        (ModelConfig, {"max_model_len": 1}, "max_model_len must be at least 2"),
        (CacheConfig, {"block_size": 0}, "block_size must be at least 1"),
        (CacheConfig, {"num_blocks": 1}, "num_blocks must be at least 2"),
        (CacheConfig, {"gpu_memory_utilization": 1.1}, r"must be in \(0, 1\]"),
        (ScheduleConfig, {"max_steps_in_flight": 0}, "max_steps_in_flight must be at least 1"),
        (ScheduleConfig, {"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs"),
        (ScheduleConfig, {"max_prefill_chunk": 0}, "max_prefill_chunk must be at least 1"),
        (ScheduleConfig, {"admission_watermark": 1.0}, r"admission_watermark must be in \[0, 1\)"),
        (ClusterConfig, {"executor": "mpi"}, "executor must be one of"),
        (ClusterConfig, {"executor": "remote"}, "needs --workers"),
        (ClusterConfig, {"executor": "local", "workers": ("a:1",)}, "goes with --executor remote"),
        (ClusterConfig, {"executor": "uniproc", "pp": 2}, "use --executor local"),
        (ClusterConfig, {"workers": ("a:1",), "pp": 2}, "does not match"),
        (ClusterConfig, {"workers": ("a",)}, "workers must be HOST:PORT, not 'a'"),
        (ClusterConfig, {"pp": 2, "devices": ("cpu",)}, "names 1 devices for 2 workers"),
        (ClusterConfig, {"pp": 2, "layers_per_stage": ("3",)}, "of 1 stages, and there are 2"),
        (ClusterConfig, {"pp": 2, "layers_per_stage": ("3", "0")}, "must be positive .* '3,0'"),
        (ClusterConfig, {"layers_per_stage": ("x",)}, "layers-per-stage must be positive integers"),
        (ServeConfig, {"grpc_port": -1}, "cannot be turned off"),
        (ServeConfig, {"http_port": 65536}, "http_port must be a port number"),
        (ServeConfig, {"log_format": "xml"}, "log_format must be one of auto, json, text"),
        (WorkerConfig, {"cudagraph_mode": "some"}, "cudagraph_mode must be one of auto, none"),
        (WorkerConfig, {"cudagraph_capture_sizes": ("1", "0")}, "positive integers .* not '1,0'"),
        (WorkerConfig, {"log_level": "loud"}, "log_level must be one of DEBUG"),
        (ServeConfig, {"drain_timeout": float("nan")}, "at least 0 seconds"),
        (ServeConfig, {"http_host": "0.0.0.0"}, "http_host is '0.0.0.0'.* --allow-plaintext"),
        (WorkerConfig, {"listen": "[::]:1"}, "^listen is '::'.* --allow-plaintext"),
        (WorkerConfig, {"tensor_listen": "node-1:1"}, "tensor_listen is 'node-1'.* --allow-plain"),
        (ServeConfig, {"metrics_listen": "0.0.0.0:1"}, "metrics_listen is '0.0.0.0'.* --allow-pl"),
        (WorkerConfig, {"metrics_listen": "[::]:1"}, "metrics_listen is '::'.* --allow-plaintext"),
        (WorkerConfig, {"metrics_listen": "7001"}, "metrics_listen must be HOST:PORT"),
        (WorkerConfig, {"listen": "7001"}, "listen must be HOST:PORT"),
        (WorkerConfig, {"threads": 0}, "threads must be at least 1"),
    ],
)
def test_slice_refuses_what_cannot_work(kind, values, message):
    """The error names the setting."""
    with pytest.raises(ConfigError, match=message):
        kind(**values)


@pytest.mark.parametrize(
    ("values", "kind", "stages"),
    [
        ({}, "local", 1),
        ({"pp": 3}, "local", 3),
        ({"workers": ("a:1", "b:2")}, "remote", 2),
        ({"executor": "uniproc"}, "uniproc", 1),
    ],
)
def test_executor_and_stages_follow_from_what_is_given(values, kind, stages):
    """Addresses mean remote and count the stages; otherwise workers are started here."""
    cluster = ClusterConfig(**values)
    assert (cluster.executor_kind, cluster.num_stages) == (kind, stages)


def test_one_step_in_flight_means_one_cohort():
    """Cohorts never outnumber the steps in flight."""
    assert ScheduleConfig().num_cohorts(4) == 4
    assert ScheduleConfig(max_steps_in_flight=1).num_cohorts(4) == 1


@pytest.mark.parametrize(
    ("given", "num_stages", "expected"),
    [
        ({}, 1, (2, 2)),
        ({}, 4, (5, 2)),
        ({"async_scheduling": False}, 4, (4, 1)),
        ({"max_steps_in_flight": 3}, 1, (3, 2)),
    ],
)
def test_steps_in_flight_follow_from_stages_and_scheduling(given, num_stages, expected):
    """Asynchronous scheduling has a step more in flight than stages, and two of a cohort."""
    schedule = ScheduleConfig(**given)
    assert (schedule.steps_in_flight(num_stages), schedule.steps_of_cohort) == expected


@pytest.mark.parametrize(
    ("given", "devices", "expected"),
    [
        (None, ("cpu",), 256),
        (None, ("cuda:0", "cpu"), 256),
        (None, ("cuda:0", "cuda:1"), 2048),
        (512, ("cpu",), 512),
    ],
)
def test_tokens_of_a_step_follow_from_the_devices(given, devices, expected):
    """A group with a CPU takes small steps unless it is told otherwise."""
    schedule = ScheduleConfig(max_num_batched_tokens=given).for_devices(devices)
    assert schedule.step_tokens == expected


def test_tensor_socket_binds_the_host_of_the_grpc_port():
    """Without an address of its own the tensor socket takes a free port of the same interface."""
    assert WorkerConfig(listen="127.0.0.2:7001").tensor_bind == ("127.0.0.2", 0)
    assert WorkerConfig(tensor_listen="127.0.0.3:7002").tensor_bind == ("127.0.0.3", 7002)


def test_ipv6_address_loses_its_brackets():
    """Brackets belong to the text, not to the host."""
    assert split_address("listen", "[::1]:80") == ("::1", 80)


@pytest.mark.parametrize("address", ["a", ":1", "a:", "a:b", "a:65536", f"{'a' * 64}:1", "a..b:1"])
def test_address_that_is_none_is_named(address: str):
    """What no look-up could take is refused with the setting, as any other spelling."""
    with pytest.raises(ConfigError, match=r"^listen must be HOST:PORT, not "):
        split_address("listen", address)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_word_about_encryption(host):
    """Nobody but this machine reaches it."""
    assert ServeConfig(http_host=host).http_host == host
    assert WorkerConfig(listen=join_address(host, 1)).tensor_bind == (host, 0)


def test_plaintext_beyond_loopback_can_be_meant():
    """Whoever says so may listen anywhere, on every port."""
    serve = ServeConfig(http_host="0.0.0.0", metrics_listen="[::]:1", allow_plaintext=True)
    assert (serve.http_host, serve.metrics_listen) == ("0.0.0.0", "[::]:1")
    worker = WorkerConfig(listen="0.0.0.0:1", tensor_listen="[::]:2", allow_plaintext=True)
    assert worker.tensor_bind == ("::", 2)
