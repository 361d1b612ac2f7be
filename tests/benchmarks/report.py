"""How a benchmark reports: a table on stdout, and JSON with the machine it ran on if a path is given."""

import argparse
import json
import os
import platform
from pathlib import Path

Row = dict[str, str | int | float]


def report(question: str, rows: list[Row]) -> None:
    """Print the rows as a table under the question; with --json PATH write them there too."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--json", type=Path, help="file to write rows and machine to")
    print(question)
    columns = list(rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    path: Path | None = parser.parse_args().json
    if path is not None:
        machine = {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        }
        path.write_text(json.dumps({"question": question, "machine": machine, "rows": rows}))


def _cell(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
