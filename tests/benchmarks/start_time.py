"""How long from `stepwire up` to the first token? The bundled model, imported before.

The first start of a machine also reads files that are in no cache yet, and is shown apart.
Run as `python -m tests.benchmarks.start_time` from the repository's root.
"""

import time

from tests.benchmarks.report import Row, report
from tests.fakes.coordinator_process import coordinator_process, greedy_tokens

STARTS = 4


def main() -> None:
    """Start, ask for one token and end, a few times."""
    rows: list[Row] = []
    for start in range(STARTS):
        started = time.monotonic()
        with coordinator_process("up") as coordinator:
            serving = time.monotonic()
            greedy_tokens(coordinator.client, num_tokens=1)
            first_token = time.monotonic()
        rows.append(
            {
                "start": start + 1,
                "serving s": serving - started,
                "first token s": first_token - started,
            }
        )
    report("from `stepwire up` to the first token, SmolLM2-135M", rows)


if __name__ == "__main__":
    main()
