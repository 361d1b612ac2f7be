"""How long does the coordinator's event loop keep others waiting? Idle, and with 256 streams.

Run as `python -m tests.benchmarks.event_loop_lag` from the repository's root. A timer in the
coordinator's process asks to be called every PERIOD_SECONDS and notes how late it was.
"""

import asyncio
import json
import sys
import threading
import time
from array import array
from pathlib import Path

import numpy as np

from common.config import CoordinatorConfig
from common.config_loader import load_config
from common.logs import configure_logging
from coordinator.app import Serving, run_coordinator
from tests.benchmarks.report import Row, report
from tests.benchmarks.streams_256 import NUM_STREAMS, streaming_coordinator

PERIOD_SECONDS = 0.002
STEP_SECONDS = 0.016
IDLE_SECONDS = 5.0


def main() -> None:
    """Measure an idle coordinator and both protocols."""
    rows = [measure(load) for load in ("idle", "sse", "grpc")]
    report(
        f"lag of the coordinator's event loop, {NUM_STREAMS} streams, a step of "
        f"{STEP_SECONDS * 1e3:.0f} ms",
        rows,
    )


def measure(load: str) -> Row:
    """Serve the load from a coordinator that watches its loop."""
    module = ("-m", "tests.benchmarks.event_loop_lag")
    with streaming_coordinator(step_seconds=STEP_SECONDS, run=module) as streaming:
        if load == "idle":
            begin = time.monotonic()
            threading.Event().wait(IDLE_SECONDS)
            end = time.monotonic()
        else:
            arrivals, _ = streaming.read(load)
            begin, end = arrivals["first"].max(), arrivals["last"].min()
        streaming.running.process.terminate()
        streaming.running.process.wait()
        noted = np.load(streaming.folder / "lags.npy").reshape(-1, 2)
    lags = noted[(noted[:, 0] >= begin) & (noted[:, 0] <= end), 1] * 1e3
    return {
        "load": load,
        "timers": len(lags),
        "p50 ms": float(np.median(lags)),
        "p99 ms": float(np.quantile(lags, 0.99)),
        "max ms": float(lags.max()),
    }


class LagTimer:
    """Calls itself every period and keeps when it was called and how late that was, in seconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.noted: array[float] = array("d")
        self._due = self._loop.time()
        self._arm()

    def _arm(self) -> None:
        self._due = self._loop.time() + PERIOD_SECONDS
        self._loop.call_at(self._due, self._note)

    def _note(self) -> None:
        now = self._loop.time()
        self.noted.extend((now, now - self._due))
        self._arm()


async def serve(config: CoordinatorConfig) -> int:
    """Run a coordinator and write what the timer has noted beside its model."""
    timer = LagTimer()
    try:
        return await run_coordinator(config, ready=_announce)
    finally:
        np.save(Path(config.model.model) / "lags.npy", np.array(timer.noted))


def _announce(serving: Serving) -> None:
    line = {"grpc_address": serving.grpc_address, "http_url": serving.http_url}
    print(json.dumps(line), flush=True)


def serve_command(flags: str) -> int:
    """Be the coordinator that is measured."""
    configure_logging("coordinator", level="WARNING")
    config = load_config(CoordinatorConfig, file=None, environ={}, flags=json.loads(flags))
    return asyncio.run(serve(config))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        sys.exit(serve_command(sys.argv[1]))
    main()
