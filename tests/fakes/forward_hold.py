"""How a test holds the forward passes of a worker in another process: by a file that both know."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

LAST_STEP = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Each forward of the steps [first_step, end_step) takes `seconds` longer.

    None: as long as the file holds it.
    """

    first_step: int = 1
    end_step: int = LAST_STEP
    seconds: float | None = None


class HoldFile:
    """The hold that is in force, None for none; written by the test, read by the worker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, hold: Hold | None) -> None:
        """Put a hold in the place of the one before, all at once."""
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(asdict(hold) if hold else None))
        written.replace(self.path)

    def read(self, step: int) -> Hold | None:
        """The hold that a step falls under."""
        try:
            written = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        hold = Hold(**written) if written else None
        return hold if hold and hold.first_step <= step < hold.end_step else None
