"""How long the phases of steps take on one rank; written by its device thread, read by any."""

from common.distribution import Distribution
from common.metrics import STEP_SECONDS
from common.step import StepTimings

NS = 1e-9


class StepTimes:
    """Distributions of seconds since the start, of whatever generation.

    input_wait: how long a step waited for the previous stage; there is none on the first stage.
    """

    def __init__(self) -> None:
        self.execute = Distribution(STEP_SECONDS)
        self.sample = Distribution(STEP_SECONDS)
        self.input_wait = Distribution(STEP_SECONDS)

    def note_execute(self, timings: StepTimings, *, has_waited: bool) -> None:
        """An execute phase is over."""
        self.execute.add((timings.compute_end_ns - timings.compute_start_ns) * NS)
        if has_waited:
            self.input_wait.add(timings.wait_input_ns * NS)

    def note_sample(self, timings: StepTimings) -> None:
        """A sample phase is over."""
        self.sample.add((timings.compute_end_ns - timings.compute_start_ns) * NS)
