"""A worker's device and memory on a GPU."""

import pytest
import torch

from common.worker_api import MemoryBudget
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_setup import load_request
from worker_service.device import bind, find_device
from worker_service.runner.model_runner import ModelRunner

pytestmark = pytest.mark.gpu

SHARE = 0.2


@pytest.fixture
def device() -> torch.device:
    """The first GPU, bound to this thread."""
    found = find_device("cuda:0")
    bind(found, num_threads=None)
    return found.torch_device


def test_device_says_what_it_has(device: torch.device) -> None:
    """Its memory is what the driver says, and float32 is always there."""
    found = find_device(str(device))
    assert found.memory_bytes == torch.cuda.mem_get_info(device)[1]
    assert "float32" in found.dtypes


def test_cache_takes_what_the_share_leaves(device: torch.device, tmp_path) -> None:
    """The profile run measures activations; the cache has the bytes that were said, within 2%."""
    folder = write_tiny_llama(tmp_path / "tiny")
    runner = ModelRunner(device=device, folder=folder, request=load_request("tiny"))
    parameter_bytes = runner.load_model().parameter_bytes
    memory = runner.profile_run(MemoryBudget(gpu_memory_utilization=SHARE))
    assert memory.activation_bytes > 0
    share = int(find_device(str(device)).memory_bytes * SHARE)
    assert memory.kv_cache_bytes == share - parameter_bytes - memory.activation_bytes
    num_blocks = (64 << 20) // runner.kv_cache_spec().bytes_per_block
    before = torch.cuda.memory_allocated(device)
    num_bytes = runner.initialize_kv_cache(num_blocks)
    assert torch.cuda.memory_allocated(device) - before == pytest.approx(num_bytes, rel=0.02)
    assert runner.warm_up() > 0
