"""Runs the short benchmarks, each in a process of its own; `make bench`."""

import subprocess
import sys

QUESTIONS = (
    "scheduler_cost",
    "pipeline_overlap",
    "wire_cost",
    "steps_in_flight",
    "health_latency",
)


def main() -> int:
    """Run them one after the other; the first failure ends the run."""
    for question in QUESTIONS:
        command = [sys.executable, "-m", f"tests.benchmarks.{question}"]
        if (exit_code := subprocess.run(command, check=False).returncode) != 0:
            return exit_code
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
