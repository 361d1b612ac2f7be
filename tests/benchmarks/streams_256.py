"""How many tokens does one coordinator stream? 256 answers at once from a worker that computes nothing.

A step of PACED_SECONDS shows the latency under a steady load, a step of no time the limit. Worker
and readers are processes of their own, but share the machine's cores with the coordinator.
Run as `python -m tests.benchmarks.streams_256` from the repository's root.
"""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from common.config_loader import child_environment
from tests.benchmarks.report import Row, report
from tests.benchmarks.stream_readers import Arrivals
from tests.fakes.running_coordinator import (
    ROOT,
    RUN,
    RunningCoordinator,
    running_coordinator,
)
from tests.fakes.stamping_worker import seconds_since, write_stamping_model
from tests.fakes.worker_process import WorkerProcess

NUM_STREAMS = 256
NUM_TOKENS = 800
PACED_SECONDS = 0.016


def main() -> None:
    """Measure both protocols, paced and as fast as it goes."""
    rows = [
        measure(protocol, step_seconds=step_seconds)
        for step_seconds in (PACED_SECONDS, 0.0)
        for protocol in ("sse", "grpc")
    ]
    report(f"{NUM_STREAMS} streams of {NUM_TOKENS} tokens from one coordinator process", rows)


def measure(protocol: str, *, step_seconds: float) -> Row:
    """Read all streams once."""
    with streaming_coordinator(step_seconds=step_seconds) as streaming:
        watched = {
            "coordinator": psutil.Process(streaming.running.process.pid),
            "worker": psutil.Process(streaming.worker.process.pid),
        }
        spent_before = {name: _cpu_seconds(process) for name, process in watched.items()}
        arrivals, reading_seconds = streaming.read(protocol)
        spent = {
            name: _cpu_seconds(process) - spent_before[name] for name, process in watched.items()
        }
    spent["readers"] = reading_seconds
    return _row(arrivals, spent, protocol=protocol, step_seconds=step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """A coordinator, its worker, and a folder to leave files in."""

    running: RunningCoordinator
    worker: WorkerProcess
    folder: Path

    def read(self, protocol: str) -> tuple[dict[str, "np.ndarray"], float]:
        """Read all streams in a process of its own: what arrived, and its CPU seconds."""
        address = self.running.http_url.removeprefix("http://")
        if protocol == "grpc":
            address = self.running.grpc_address
        file = self.folder / "arrivals.npz"
        module = "tests.benchmarks.stream_readers"
        asked = (protocol, address, str(NUM_STREAMS), str(NUM_TOKENS), str(file))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", module, *asked], cwd=ROOT, env=child_environment(), check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Arrivals.read(file), spent


@contextmanager
def streaming_coordinator(
    *, step_seconds: float, run: Sequence[str] = ("-c", RUN)
) -> Iterator[Streaming]:
    """A coordinator that runs as `run` says, on one worker whose steps take so long."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_stamping_model(folder)
        worker = WorkerProcess(str(step_seconds), module="tests.fakes.stamping_worker")
        stack.callback(worker.kill)
        worker.wait_until_ready()
        flags = {
            "model": str(folder),
            "executor": "remote",
            "workers": worker.address,
            "max_num_seqs": NUM_STREAMS,
            # The worker draws a token for every row, so no prompt may be cut.
            "max_num_batched_tokens": 2048,
            "kv_cache_bytes": 1 << 26,
        }
        running = stack.enter_context(running_coordinator(flags, run=run))
        yield Streaming(running=running, worker=worker, folder=folder)


def _row(
    arrivals: dict[str, "np.ndarray"],
    spent: dict[str, float],
    *,
    protocol: str,
    step_seconds: float,
) -> Row:
    """Figures of the time in which all streams ran."""
    begin, end = arrivals["first"].max(), arrivals["last"].min()
    is_counted = (arrivals["arrived"] > begin) & (arrivals["arrived"] <= end)
    latencies = seconds_since(arrivals["stamps"], arrivals["arrived"])[is_counted]
    num_tokens = NUM_STREAMS * NUM_TOKENS
    seconds = arrivals["last"].max() - arrivals["first"].min()
    return {
        "protocol": protocol,
        "step ms": step_seconds * 1e3,
        "tokens/s": float(len(latencies) / (end - begin)),
        "p50 ms": float(np.median(latencies)) * 1e3,
        "p99 ms": float(np.quantile(latencies, 0.99)) * 1e3,
        "CPU us a token": spent["coordinator"] / num_tokens * 1e6,
        "coordinator cores": spent["coordinator"] / seconds,
        "readers cores": spent["readers"] / seconds,
        "worker cores": spent["worker"] / seconds,
    }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
