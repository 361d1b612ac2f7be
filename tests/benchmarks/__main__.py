"""Runs the short benchmarks, each in a process of its own; `make bench`.

With `--json FOLDER` each leaves its figures there, as QUESTION.json.
"""

import argparse
import subprocess
import sys
from pathlib import Path

QUESTIONS = (
    "scheduler_cost",
    "prefix_cache",
    "decode_step",
    "block_count",
    "quantization_speed",
    "wire_cost",
    "idle_gap",
    "pipeline_overlap",
    "stage_overlap",
    "steps_in_flight",
    "streams_256",
    "metrics_cost",
    "event_loop_lag",
    "health_latency",
    "start_time",
)
"""All but those that need many minutes or a peer, which are run by name: perplexity, vllm_cpu, llama_cpp."""


def main() -> int:
    """Run them one after the other; the first failure ends the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="folder to write the figures to")
    folder: Path | None = parser.parse_args().json
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for question in QUESTIONS:
        command = [sys.executable, "-m", f"tests.benchmarks.{question}"]
        if folder is not None:
            command += ["--json", str(folder / f"{question}.json")]
        if (exit_code := subprocess.run(command, check=False).returncode) != 0:
            return exit_code
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
