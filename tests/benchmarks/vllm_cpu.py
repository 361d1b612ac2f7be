"""How does serving compare with vLLM's CPU build? Output tokens/s and latencies over HTTP, in turns.

Run as `python -m tests.benchmarks.vllm_cpu` from the repository's root, after
`sh tests/benchmarks/peers/vllm_cpu.sh` has made the peer's venv.
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.config_loader import cache_folder, child_environment
from common.model_folder import resolve_model
from tests.benchmarks.http_load import MODEL_NAME, Answered, run_load
from tests.benchmarks.load import Load
from tests.benchmarks.peer_folder import peer_folder, recorded_version
from tests.benchmarks.report import Row, report
from tests.fakes.running_coordinator import running_coordinator

ROUNDS = 5
LOADS = tuple(
    Load(input_len=128, output_len=64, concurrency=concurrency, num_requests=num_requests)
    for concurrency, num_requests in ((1, 4), (8, 16), (32, 64))
)
MAX_MODEL_LEN = 2048
CACHE_GIB = 2
START_SECONDS = 400
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server listens; process_group: what is stopped while others have their turn."""

    url: str
    process_group: int | None = None

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let a stopped server run inside the block."""
        if self.process_group is None:
            yield
            return
        os.killpg(self.process_group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.process_group, signal.SIGSTOP)


def main() -> None:
    """Start both servers, warm both with every load, and let them take turns."""
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    with stepwire_server(folder) as ours, vllm_server(folder) as theirs:
        found = asyncio.run(take_turns((ours, theirs), LOADS, rounds=ROUNDS))
    rows: list[Row] = []
    for load, (our_rounds, their_rounds) in zip(LOADS, found, strict=True):
        rows.append(row("stepwire", load, our_rounds, base=their_rounds))
        rows.append(row("vllm-cpu", load, their_rounds, base=their_rounds))
    version = recorded_version(peer_folder("vllm_cpu"), "**/vllm_cpu-*.dist-info/METADATA")
    report(
        "bf16, 128 tokens in, 64 out, SmolLM2-135M, streamed over HTTP",
        rows,
        peers={"vllm-cpu": version},
    )


@contextmanager
def stepwire_server(folder: Path) -> Iterator[Server]:
    """A coordinator with one local worker, which sleeps between requests."""
    flags = {
        "model": str(folder),
        "served_model_name": MODEL_NAME,
        "dtype": "bfloat16",
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_bytes": CACHE_GIB << 30,
        "threads": os.cpu_count(),
    }
    with running_coordinator(flags) as running:
        yield Server(url=running.http_url)


@contextmanager
def vllm_server(folder: Path) -> Iterator[Server]:
    """The peer with as many threads and as large a cache, stopped between its turns.

    Its threads spin for seconds after an answer, on the cores the other server needs.
    """
    venv = peer_folder("vllm_cpu")
    port = _free_port()
    command = [
        str(venv / "bin" / "vllm"),
        *("serve", str(folder), "--dtype", "bfloat16", "--served-model-name", MODEL_NAME),
        *("--max-model-len", str(MAX_MODEL_LEN), "--port", str(port), "--host", "127.0.0.1"),
    ]
    num_threads = os.cpu_count() or 1
    environment = child_environment() | {
        "PATH": f"{venv / 'bin'}:{os.defpath}",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "OMP_NUM_THREADS": str(num_threads),
        # By default it computes on all cores but one, whatever OMP_NUM_THREADS says; and its
        # documentation wants Intel's OpenMP, which its requirements bring.
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        "LD_PRELOAD": str(venv / "lib" / "libiomp5.so"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    url = f"http://127.0.0.1:{port}"
    with (venv / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_healthy(url, process)
        os.killpg(process.pid, signal.SIGSTOP)
        try:
            yield Server(url=url, process_group=process.pid)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
    finally:
        process.terminate()
        process.wait()


async def take_turns(
    servers: Sequence[Server], loads: Sequence[Load], *, rounds: int
) -> list[list[list[Answered]]]:
    """By load, by server, by round; the warm-up before is not counted, prompts never repeat."""
    found: list[list[list[Answered]]] = [[[] for _ in servers] for _ in loads]
    for seed in range(rounds + 1):
        for index, (load, by_server) in enumerate(zip(loads, found, strict=True)):
            for server, answers in zip(servers, by_server, strict=True):
                with server.in_turn():
                    answered = await run_load(server.url, load, seed=seed * len(loads) + index)
                if seed > 0:
                    answers.append(answered)
    return found


def row(server: str, load: Load, rounds: Sequence[Answered], *, base: Sequence[Answered]) -> Row:
    """Medians over the rounds with the extremes of the rate, and ratios within the same round."""

    def median(of: Callable[[Answered], float]) -> float:
        return statistics.median(map(of, rounds))

    def ratio(of: Callable[[Answered], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(rounds, base, strict=True))

    rates = [answered.tokens_per_second for answered in rounds]
    return {
        "server": server,
        "concurrency": load.concurrency,
        "tokens/s": median(lambda a: a.tokens_per_second),
        "lowest": min(rates),
        "highest": max(rates),
        "first token ms": median(lambda a: a.first_token_ms),
        "inter-token ms": median(lambda a: a.inter_token_ms),
        "tokens/s ÷": ratio(lambda a: a.tokens_per_second),
        "first token ÷": ratio(lambda a: a.first_token_ms),
        "inter-token ÷": ratio(lambda a: a.inter_token_ms),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise RuntimeError(f"the peer ended with {process.returncode} before it served")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=POLL_SECONDS):
                return
        except (urllib.error.URLError, TimeoutError):
            continue
    raise RuntimeError(f"the peer did not serve within {START_SECONDS} s")


if __name__ == "__main__":
    main()
