"""The script that proves and measures the GPU path, as far as a machine without a GPU runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.gpu import run
from tests.gpu.kernel_cases import TINY, KernelCases
from tests.gpu.rows import TableRow, markdown, read_rows
from tests.gpu.stopwatch import Ceilings, HostStopwatch, measure_ceilings, median_seconds

ROW = TableRow(part="a part", what="a thing", figures={"ms": 1.25})


class SteppedTime:
    """A clock of which each work that is run takes the next of the given seconds."""

    def __init__(self, *durations: float) -> None:
        self._durations = list(durations)
        self._now = 0.0

    def work(self) -> None:
        """Take some time."""
        self._now += self._durations.pop(0)

    def __call__(self) -> float:
        """Now."""
        return self._now


class GivenSeconds:
    """A stopwatch that says the same of everything."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Run it, and say half a second."""
        work()
        return 0.5


def test_median_leaves_warm_ups_out() -> None:
    """Compiling is no part of the time, and one slow round changes nothing."""
    now = SteppedTime(99.0, 99.0, 2.0, 50.0, 3.0)
    watch = HostStopwatch(now)
    assert median_seconds(now.work, watch=watch, rounds=3, warm_ups=2) == 3.0


def test_share_is_of_the_tighter_ceiling() -> None:
    """1 s of bytes and 4 s of operations take 4 s at least."""
    ceilings = Ceilings(bytes_per_second=100.0, flops_per_second=10.0)
    assert ceilings.share(8.0, num_bytes=100, flops=40) == 0.5
    assert ceilings.share(8.0, num_bytes=400, flops=10) == 0.5


def test_ceilings_count_bytes_read_and_written() -> None:
    """A copy moves each byte twice; a matmul of n does 2 n^3 operations."""
    ceilings = measure_ceilings(
        torch.device("cpu"), watch=GivenSeconds(), copy_bytes=1000, matmul_size=10, rounds=1
    )
    assert ceilings == Ceilings(bytes_per_second=4000.0, flops_per_second=4000.0)


def test_attention_counts_what_it_must_read() -> None:
    """Keys and values of each row's context, queries and outputs; 4 operations an element seen."""
    cases = KernelCases(TINY, device=torch.device("cpu"), dtype=torch.bfloat16)
    decode = next(iter(cases))
    assert decode.num_bytes == 2 * (2 * 3 * 35 * 2 * 16 + 2 * 3 * 4 * 16)
    assert decode.flops == 4 * 3 * 35 * 4 * 16


def test_rows_are_read_among_other_lines() -> None:
    """What libraries print beside them, JSON or not, is no row."""
    printed = 'hello\n{"part": 1}\n[]\n' + json.dumps(
        {"part": "p", "what": "w", "result": "ok", "figures": {"ms": 2.0}}
    )
    assert read_rows(printed) == [TableRow(part="p", what="w", figures={"ms": 2.0})]


def test_table_is_markdown() -> None:
    """A line a row below the heading; a bar within a cell is escaped."""
    table = markdown([ROW, TableRow(part="b", what="x|y", result="failed: no")])
    assert table.splitlines()[2:] == [
        "| a part | a thing | ok | ms 1.25 |",
        "| b | x\\|y | failed: no |  |",
    ]


@pytest.mark.parametrize(
    ("program", "limit_s", "reason"),
    [
        ("raise SystemExit('it broke')", 60.0, "failed: it broke"),
        ("import threading; threading.Event().wait()", 0.5, "failed: took more than 0.5 s"),
    ],
)
def test_failed_part_is_a_row(program: str, limit_s: float, reason: str) -> None:
    """With its reason, whether it ends badly or not at all; it proves nothing."""
    part = run.Part(name="a part", command=("-c", program), limit_s=limit_s)
    rows = run.run_part(part, environment={})
    assert [row.result for row in rows] == [reason]
    assert not run.is_proved(rows, ["a part"])


def test_rows_before_a_failure_are_kept() -> None:
    """A part that fails late has measured something."""
    program = "from tests.gpu.rows import *; emit(TableRow(part='a part', what='x')); exit('late')"
    part = run.Part(name="a part", command=("-c", program), limit_s=60.0)
    rows = run.run_part(part, environment={})
    assert [row.result for row in rows] == ["ok", "failed: late"]


def test_nothing_found_proves_nothing() -> None:
    """A required part without rows is not proved."""
    assert run.is_proved([ROW], ["a part"])
    assert not run.is_proved([ROW], ["a part", "another"])


def test_limits_leave_less_than_eight_minutes() -> None:
    """All parts at their limits, in the order the table has."""
    parts = run.parts(device="cuda", is_rehearsal=False)
    assert sum(part.limit_s for part in parts) < 8 * 60
    assert [part.name for part in parts if part.is_required] == ["same tokens", "gpu tests"]


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, with an exit code of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main([]) == run.NO_GPU
    assert "no GPU" in capsys.readouterr().out


def test_rehearsal_writes_every_kernel(tmp_path: Path) -> None:
    """Kernel times, interpreted: ceilings, a row a kernel, the edits; as JSON and as Markdown."""
    json_file, markdown_file = tmp_path / "gpu.json", tmp_path / "gpu.md"
    files = ["--json", str(json_file), "--markdown", str(markdown_file)]
    assert run.main(["--device=cpu", "--rehearse", "--only=kernel times", *files]) == 0
    found = json.loads(json_file.read_text())
    rows = [TableRow(**row) for row in found["rows"]]
    cases = KernelCases(TINY, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert [row.what for row in rows[1:-1]] == [f"{case.name}, bf16" for case in cases]
    assert [row.result for row in rows] == ["ok"] * len(rows)
    assert all(min(row.figures.values()) > 0 for row in rows)
    assert markdown_file.read_text() == markdown(rows)
    assert found["is_rehearsal"]
