"""A row of the GPU table, and how rows travel and are shown: JSON lines, JSON and Markdown."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

OK = "ok"
COLUMNS = ("part", "what", "result", "figures")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """What one part found out about one thing; figures by name, the unit within the name."""

    part: str
    what: str
    result: str = OK
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed."""
        return not self.result.startswith("failed")


def emit(row: TableRow) -> None:
    """Hand a row to the process that gathers them."""
    print(json.dumps(asdict(row)), flush=True)  # noqa: T201 - its purpose


def read_rows(output: str) -> list[TableRow]:
    """The rows among the lines a part printed."""
    rows: list[TableRow] = []
    for line in output.splitlines():
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict) and found.keys() == set(TableRow.__dataclass_fields__):
            rows.append(TableRow(**found))
    return rows


def markdown(rows: Iterable[TableRow]) -> str:
    """A table with one line a row."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in rows:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in row.figures.items())
        lines.append((row.part, row.what, row.result, figures))
    return "".join(f"| {' | '.join(_escaped(cell) for cell in line)} |\n" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
