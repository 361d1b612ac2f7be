"""Whether the workers' books are the scheduler's: digests compared, and the comparisons counted."""

from collections.abc import Mapping

from common.errors import StepFailed


class StateChecks:
    """The comparisons of one replica."""

    def __init__(self) -> None:
        self.num_checks = 0
        """Steps after which the books were compared."""
        self.num_drifts = 0
        """Of these, steps after which they differed."""

    def compare(self, expected: bytes, found: Mapping[str, bytes | None], *, step: int) -> None:
        """Raise StepFailed, naming the ranks whose digest is not the expected one."""
        self.num_checks += 1
        drifted = [name for name, digest in found.items() if digest != expected]
        if drifted:
            self.num_drifts += 1
            raise StepFailed(
                f"{', '.join(drifted)}: requests, blocks or computed counts differ from the "
                f"scheduler's after step {step}"
            )
