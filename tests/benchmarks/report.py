"""How a benchmark reports: a table on stdout, and JSON with what it depends on if a path is given."""

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.machine import commit, machine, versions

Row = dict[str, str | int | float]


def report(
    question: str,
    rows: list[Row],
    *,
    peers: Mapping[str, str] | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> None:
    """Print the rows as a table under the question; with --json PATH write them there too.

    peers: versions of what was compared with. parser: of the benchmark's own options.
    """
    parser = parser or argparse.ArgumentParser(description=question)
    parser.add_argument("--json", type=Path, help="file to write rows, machine and versions to")
    print(question)
    columns = list(rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    path: Path | None = parser.parse_args().json
    if path is not None:
        facts = {
            "question": question,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions() | dict(peers or {}),
            "rows": rows,
        }
        path.write_text(json.dumps(facts, indent=2) + "\n")


def _cell(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
