"""How long work takes on a device, and what share of the device's ceilings that is."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

SPIN_CYCLES = 2_000_000
"""The GPU is kept busy while the work is queued, so that only the work itself is timed."""


class Stopwatch(Protocol):
    """Times one run of some work."""

    def seconds(self, work: Callable[[], object]) -> float:
        """From the beginning to the end of the work on the device."""
        ...


class CudaStopwatch:
    """Events on the current stream."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Without what the host needs to queue it, as long as that is less than the spin."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SPIN_CYCLES)
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3


class HostStopwatch:
    """The host's clock, for work that is done when its call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    def seconds(self, work: Callable[[], object]) -> float:
        """Between the two sides of the call."""
        started = self._now()
        work()
        return self._now() - started


def stopwatch(device: torch.device) -> Stopwatch:
    """The one for a device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


def median_seconds(
    work: Callable[[], object], *, watch: Stopwatch, rounds: int, warm_ups: int = 3
) -> float:
    """The median of some rounds, after runs that compile and warm caches."""
    for _ in range(warm_ups):
        work()
    return statistics.median(watch.seconds(work) for _ in range(rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What the device does at most: bytes and floating-point operations a second."""

    bytes_per_second: float
    flops_per_second: float

    def share(self, seconds: float, *, num_bytes: float, flops: float) -> float:
        """The least time the work could take, by the tighter ceiling, in parts of what it took."""
        least = max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)
        return least / seconds


def measure_ceilings(
    device: torch.device, *, watch: Stopwatch, copy_bytes: int, matmul_size: int, rounds: int
) -> Ceilings:
    """A copy, which reads and writes each byte once, and a square matmul in bfloat16."""
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = median_seconds(lambda: target.copy_(source), watch=watch, rounds=rounds)
    a, b = (
        torch.randn(matmul_size, matmul_size, device=device).to(torch.bfloat16) for _ in range(2)
    )
    matmul_s = median_seconds(lambda: a @ b, watch=watch, rounds=rounds)
    return Ceilings(
        bytes_per_second=2 * copy_bytes / copy_s, flops_per_second=2 * matmul_size**3 / matmul_s
    )
