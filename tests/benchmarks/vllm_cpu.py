"""How does serving compare with vLLM's CPU build? Output tokens/s and latencies over HTTP, in turns.

Run as `python -m tests.benchmarks.vllm_cpu` from the repository's root, after
`sh tests/benchmarks/peers/vllm_cpu.sh` has made the peer's venv. With `--peer-threads own` the peer
places its threads itself instead of being bound to all cores. Beside the ratios stands what ours
could be at most: the same load if a step were its linear layers alone.
"""

import argparse
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
from tests.benchmarks.linear_ceiling import LinearLayers, read_gigabytes_per_second
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
BOUND = "bound"
"""The peer's threads are bound to all cores."""


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
    """Start both servers, warm both with every load, let them take turns, and measure the ceilings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer-threads",
        choices=(BOUND, "own"),
        default=BOUND,
        help="bind the peer to all cores, or leave its threads to itself",
    )
    peer_threads: str = parser.parse_known_args()[0].peer_threads
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    with (
        stepwire_server(folder) as ours,
        vllm_server(folder, is_bound=peer_threads == BOUND) as theirs,
    ):
        found = asyncio.run(take_turns((ours, theirs), LOADS, rounds=ROUNDS))
    ceilings = Ceilings(folder)
    rows: list[Row] = []
    for load, (our_rounds, their_rounds) in zip(LOADS, found, strict=True):
        ours_row = row("stepwire", load, our_rounds, base=their_rounds)
        theirs_row = row("vllm-cpu", load, their_rounds, base=their_rounds)
        limits = ceilings.row(load, base=their_rounds)
        rows += [ours_row | limits, theirs_row | dict.fromkeys(limits, "")]
    version = recorded_version(peer_folder("vllm_cpu"), "**/vllm_cpu-*.dist-info/METADATA")
    report(
        f"bf16, 128 tokens in, 64 out, SmolLM2-135M, over HTTP; the peer's threads: {peer_threads}",
        rows,
        peers={"vllm-cpu": version},
        parser=parser,
    )


class Ceilings:
    """What our server could not exceed on this machine, measured with nothing else running."""

    def __init__(self, folder: Path) -> None:
        num_threads = os.cpu_count() or 1
        self._linear = LinearLayers(folder, num_threads=num_threads)
        self._bandwidth = read_gigabytes_per_second(num_threads=num_threads)

    def row(self, load: Load, *, base: Sequence[Answered]) -> Row:
        """Milliseconds of a step's linear layers, of reading them once, and the rate they leave."""
        num_rows, num_tokens = load.concurrency, load.output_len
        decode_ms = self._linear.milliseconds(num_rows)
        prompts_ms = self._linear.milliseconds(num_rows * load.input_len, num_sampled=num_rows)
        # All start together: a step of the prompts, then one for each further token.
        rate = num_rows * num_tokens / (prompts_ms + (num_tokens - 1) * decode_ms) * 1e3
        return {
            "linear ms": decode_ms,
            "prompts' linear ms": prompts_ms,
            "read once ms": self._linear.num_bytes / self._bandwidth / 1e6,
            "memory GB/s": self._bandwidth,
            "linear tokens/s": rate,
            "linear ÷": rate / statistics.median(answered.tokens_per_second for answered in base),
        }


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
def vllm_server(folder: Path, *, is_bound: bool) -> Iterator[Server]:
    """The peer with as many threads and as large a cache, stopped between its turns.

    is_bound: to all cores, with Intel's OpenMP.

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
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if is_bound:
        # By default it computes on all cores but one, whatever OMP_NUM_THREADS says; and its
        # documentation wants Intel's OpenMP, which its requirements bring.
        environment |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
            "LD_PRELOAD": str(venv / "lib" / "libiomp5.so"),
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
