"""Arithmetic of cache memory, and the meter."""

import pytest
import torch

from common.errors import ConfigError
from common.worker_api import MemoryBudget
from worker_service.runner.memory import kv_cache_bytes, kv_cache_spec
from worker_service.runner.memory_meter import AllocatorMeter, memory_meter


def test_a_block_holds_keys_and_values_of_all_layers():
    """2 x layers x heads x head size x block size x bytes per element."""
    spec = kv_cache_spec(
        num_layers=30, num_kv_heads=3, head_size=64, block_size=16, dtype=torch.bfloat16
    )
    assert spec.bytes_per_block == 2 * 30 * 3 * 64 * 16 * 2


def cache_bytes(budget: MemoryBudget, device_bytes: int | None) -> int:
    """Bytes for the cache beside 300 bytes of parameters and 100 of activations."""
    return kv_cache_bytes(
        budget, device_bytes=device_bytes, parameter_bytes=300, activation_bytes=100
    )


def test_bytes_that_are_named_are_taken_as_they_are():
    """On a CPU nothing is subtracted from what the user gave the cache."""
    assert cache_bytes(MemoryBudget(kv_cache_bytes=5000), None) == 5000


def test_a_gpu_gives_what_its_share_leaves():
    """The share of the device's memory less parameters and activations."""
    assert cache_bytes(MemoryBudget(gpu_memory_utilization=0.5), 2000) == 600


@pytest.mark.parametrize("device_bytes", [None, 700])
def test_nothing_left_is_an_error(device_bytes):
    """A CPU without a named size and a GPU without room are refused."""
    with pytest.raises(ConfigError):
        cache_bytes(MemoryBudget(gpu_memory_utilization=0.5), device_bytes)


def test_the_meter_counts_what_lives_at_once():
    """Released tensors, views and tensors from before do not add up; the peak stays."""
    before = torch.zeros(1000)
    with torch.inference_mode(), memory_meter(torch.device("cpu")) as meter:
        before.add_(1)
        first = before + 1
        view = first[:500]
        assert meter.peak_bytes == 4000
        second = first + 1
        assert meter.peak_bytes == 8000
        del first, view, second
        third = before + 2
        assert meter.peak_bytes == 8000
        del third


class ScriptedAllocator:
    """What the meter asks of `torch.cuda`, and in which order; bytes are set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.allocated, self.peak = 0, 0
        for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.calls.append(name))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.allocated)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)


def test_the_meter_of_a_gpu_asks_its_allocator(monkeypatch):
    """The peak counts from the entry, work that is queued included; spare memory is given back."""
    allocator = ScriptedAllocator(monkeypatch)
    allocator.allocated = 700
    meter = memory_meter(torch.device("cuda:0"))
    assert isinstance(meter, AllocatorMeter)
    with meter:
        assert allocator.calls == ["synchronize", "reset_peak_memory_stats"]
        allocator.peak = 1000
        assert meter.peak_bytes == 300
        assert allocator.calls[-1] == "synchronize"
    assert allocator.calls[-1] == "empty_cache"
