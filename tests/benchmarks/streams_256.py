"""How many tokens does one coordinator stream? 256 answers at once from a worker that computes nothing.

A step of PACED_SECONDS shows the latency under a steady load, a step of no time the limit. Worker
and readers are processes of their own, but share the machine's cores with the coordinator.
Run as `python -m tests.benchmarks.streams_256` from the repository's root.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

from common.config_loader import child_environment
from tests.benchmarks.report import Row, report
from tests.benchmarks.stream_readers import Arrivals
from tests.fakes.running_coordinator import ROOT, RunningCoordinator, running_coordinator
from tests.fakes.stamping_worker import seconds_since, write_stamping_model
from tests.fakes.worker_process import WorkerProcess

NUM_STREAMS = 256
NUM_TOKENS = 400
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_stamping_model(folder)
        worker = WorkerProcess(str(step_seconds), module="tests.fakes.stamping_worker")
        stack.callback(worker.kill)
        worker.wait_until_ready()
        running = stack.enter_context(
            running_coordinator(
                {
                    "model": str(folder),
                    "executor": "remote",
                    "workers": worker.address,
                    "max_num_seqs": NUM_STREAMS,
                    "kv_cache_bytes": 1 << 26,
                }
            )
        )
        watched = {
            "coordinator": psutil.Process(running.process.pid),
            "worker": psutil.Process(worker.process.pid),
        }
        spent_before = {name: _cpu_seconds(process) for name, process in watched.items()}
        arrivals, spent = _read_streams(running, protocol, folder / "arrivals.npz")
        for name, process in watched.items():
            spent[name] = _cpu_seconds(process) - spent_before[name]
    return _row(arrivals, spent, protocol=protocol, step_seconds=step_seconds)


def _read_streams(
    running: RunningCoordinator, protocol: str, file: Path
) -> tuple[dict[str, "np.ndarray"], dict[str, float]]:
    """What arrived, and the CPU seconds of the process that read it."""
    address = running.http_url.removeprefix("http://")
    if protocol == "grpc":
        address = running.grpc_address
    command: Sequence[str] = (
        sys.executable,
        "-m",
        "tests.benchmarks.stream_readers",
        *(protocol, address, str(NUM_STREAMS), str(NUM_TOKENS), str(file)),
    )
    with psutil.Popen(command, cwd=ROOT, env=child_environment()) as reading:
        times = reading.cpu_times()
        while reading.is_running() and reading.status() != psutil.STATUS_ZOMBIE:
            times = reading.cpu_times()
            try:
                reading.wait(timeout=0.1)
            except psutil.TimeoutExpired:
                continue
        if reading.wait() != 0:
            raise subprocess.CalledProcessError(reading.returncode, command)
    return Arrivals.read(file), {"readers": times.user + times.system}


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
