"""What is counted of steps: how large they are, how long each rank computes and waits, and idles.

A rank's bubble is the time between the end of one step and the start of the next while there was
work: on its own clock, so that no two clocks are compared.
"""

from collections import defaultdict
from collections.abc import Mapping

from common.distribution import Distribution
from common.metrics import STEP_SECONDS
from common.step import StepTimings
from common.worker_api import Rank

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Bounds of the tokens of a step, those of vLLM."""

NS = 1e-9


class StepMeasures:
    """Distributions since the start, of whatever generation; written and read on the event loop."""

    def __init__(self) -> None:
        self.num_tokens = Distribution(STEP_TOKENS)
        self.round_trip = Distribution(STEP_SECONDS)
        self.compute: dict[Rank, Distribution] = {}
        self.input_wait: dict[Rank, Distribution] = {}
        self.bubble_seconds: dict[Rank, float] = defaultdict(float)
        self._ended_ns: dict[Rank, int] = {}

    def note_answered(
        self,
        timings: Mapping[Rank, StepTimings],
        *,
        num_tokens: int,
        seconds: float,
        is_last: bool,
    ) -> None:
        """A step was answered by all ranks, so many seconds after it was sent.

        is_last: no step is on its way behind it, so that what follows it is no bubble.
        """
        self.num_tokens.add(num_tokens)
        self.round_trip.add(seconds)
        for rank, timing in timings.items():
            self._note_rank(rank, timing)
        if is_last:
            self._ended_ns.clear()

    def note_generation(self) -> None:
        """A new generation begins, perhaps on workers with other clocks."""
        self._ended_ns.clear()

    def _note_rank(self, rank: Rank, timing: StepTimings) -> None:
        if rank not in self.compute:
            self.compute[rank] = Distribution(STEP_SECONDS)
            self.input_wait[rank] = Distribution(STEP_SECONDS)
        start_ns, end_ns = timing.compute_start_ns, timing.compute_end_ns
        self.compute[rank].add((end_ns - start_ns) * NS)
        self.input_wait[rank].add(timing.wait_input_ns * NS)
        self.bubble_seconds[rank] += max(0, start_ns - self._ended_ns.get(rank, start_ns)) * NS
        self._ended_ns[rank] = end_ns
