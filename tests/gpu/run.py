"""Proves and measures the GPU path in one run of less than 8 minutes; prints one table.

Run as `tests/gpu/run` or `python -m tests.gpu.run`. A part is a process with a time limit, and one that
fails is a row that says so. Exits with 0 when tokens and tests are right, with 1 when not, and
with 2 on a machine without a GPU, unless `--device cpu --rehearse` runs everything tiny on the CPU.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from common.config_loader import child_environment
from tests.benchmarks.machine import commit, machine, versions
from tests.gpu.rows import TableRow, markdown, read_rows

ROOT = Path(__file__).parents[2]
UNIT = "tests/unit/worker_service/kernels"
NO_GPU = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What Python runs for it, within how many seconds; whether it prints rows of its own."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    is_required: bool = False
    prints_rows: bool = True


def parts(*, device: str, is_rehearsal: bool) -> tuple[Part, ...]:
    """In the order of their weight; the limits add up to less than 8 minutes."""
    flags = ("--device", device, *(("--rehearse",) if is_rehearsal else ()))
    tests = (
        ("-m", "gpu", "-k", "gated", "tests/gpu/test_kernels.py")
        if is_rehearsal
        else (
            "-m",
            "gpu or not gpu",
            "tests/gpu",
            f"{UNIT}/test_triton_kernels.py",
            f"{UNIT}/test_triton_attention.py",
        )
    )
    return (
        Part(
            name="same tokens",
            command=("-m", "tests.gpu.pipeline_tokens", *flags),
            limit_s=100,
            is_required=True,
        ),
        Part(
            name="gpu tests",
            command=("-m", "pytest", "-q", "--no-header", "--tb=short", *tests),
            limit_s=170,
            is_required=True,
            prints_rows=False,
        ),
        Part(name="kernel times", command=("-m", "tests.gpu.kernel_times", *flags), limit_s=80),
        Part(
            name="decode throughput",
            command=("-m", "tests.gpu.decode_throughput", *flags),
            limit_s=110,
        ),
    )


def run_part(part: Part, *, environment: dict[str, str]) -> list[TableRow]:
    """Its rows, with one more when it did not end well."""
    child = subprocess.Popen(
        [sys.executable, *part.command],
        cwd=ROOT,
        env=child_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            output, errors = child.communicate(timeout=part.limit_s)
            reason = "" if child.returncode == 0 else _last_line(errors, output)
        except subprocess.TimeoutExpired:
            # Workers that the child started end when its end of their pipes closes.
            child.kill()
            output, _ = child.communicate()
            reason = f"took more than {part.limit_s:g} s"
    rows = read_rows(output) if part.prints_rows else []
    if reason:
        rows.append(TableRow(part=part.name, what="the whole part", result=f"failed: {reason}"))
    elif not part.prints_rows:
        rows.append(TableRow(part=part.name, what=_last_line(output)))
    return rows


def is_proved(rows: Iterable[TableRow], required: Sequence[str]) -> bool:
    """Whether every required part has rows and none of them failed."""
    found = [row for row in rows if row.part in required]
    return {row.part for row in found} == set(required) and all(row.is_ok for row in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, show and write the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu with --rehearse")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, kernels interpreted")
    parser.add_argument("--only", action="append", help="name of a part; may be given again")
    parser.add_argument("--json", type=Path, help="file to write rows, machine and versions to")
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    options = parser.parse_args(arguments)
    if not options.rehearse and not torch.cuda.is_available():
        print("no GPU: torch sees no CUDA device; --device cpu --rehearse tries the script itself")  # noqa: T201
        return NO_GPU
    interpret = "1" if options.device == "cpu" else "0"
    every = parts(device=options.device, is_rehearsal=options.rehearse)
    chosen = [part for part in every if not options.only or part.name in options.only]
    if unknown := set(options.only or ()) - {part.name for part in every}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    rows: list[TableRow] = []
    for part in chosen:
        found = run_part(part, environment={"TRITON_INTERPRET": interpret})
        rows += found
        print(markdown(found), flush=True)  # noqa: T201 - seen even if a later part is cut off
    table = markdown(rows)
    print(table)  # noqa: T201 - its purpose
    if options.markdown is not None:
        options.markdown.write_text(table)
    if options.json is not None:
        facts = {
            "is_rehearsal": options.rehearse,
            "device": _device_name(options.device),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 0 if is_proved(rows, [part.name for part in chosen if part.is_required]) else 1


def _device_name(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name(device)


def _last_line(*texts: str) -> str:
    lines = [line for text in texts for line in text.strip().splitlines()[-1:]]
    return lines[0][:200] if lines else "nothing was printed"


if __name__ == "__main__":
    sys.exit(main())
