"""How long a rank may compute on a step before it counts as hung, learnt from the steps it has run.

Pure: no clock and no I/O. Stands beside the executor, which asks before it sends a step and tells
what the reply says; `coordinator.recovery` may import it from here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.step import SchedulerOutput, StepTimings

Floats = NDArray[np.float64]

NUM_COEFFICIENTS = 3
NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineRules:
    """When a step is overdue: max(floor, factor x fitted seconds), all times in seconds.

    first_floor holds until num_first_steps steps were seen, then floor. unusual_factor multiplies
    the whole for the first step of a shape and the first after a rebuild, which may have to compile
    or to fill caches. The fit is renewed every refit_every steps and with each new shape.
    """

    first_floor: float = 10.0
    floor: float = 2.0
    num_first_steps: int = 100
    factor: float = 10.0
    unusual_factor: float = 10.0
    refit_every: int = 32


DEFAULT_RULES = DeadlineRules()

Shape = tuple[int, int]
"""Tokens and rows of a step, each rounded up to a power of two."""


class StepDeadlines:
    """The deadlines of one rank; fits seconds = a + b * tokens + c * context, none of them negative.

    context is the sum over the step's rows of the tokens computed before it.
    """

    def __init__(self, rules: DeadlineRules = DEFAULT_RULES) -> None:
        self._rules = rules
        self._num_steps = 0
        self._shapes: set[Shape] = set()
        self._is_rebuilt = False
        # The normal equations of the least squares: all that the fit keeps of the steps.
        # Plain floats: on nine numbers they are faster than numpy, and this runs with every step.
        self._products = [[0.0] * NUM_COEFFICIENTS for _ in range(NUM_COEFFICIENTS)]
        self._moments = [0.0] * NUM_COEFFICIENTS
        self._coefficients = [0.0] * NUM_COEFFICIENTS

    def deadline(self, *, num_tokens: int, context: int, num_rows: int) -> float:
        """Seconds of compute after which a step of this size is overdue."""
        rules = self._rules
        floor = rules.first_floor if self._num_steps < rules.num_first_steps else rules.floor
        constant, per_token, per_context = self._coefficients
        expected = constant + per_token * num_tokens + per_context * context
        is_unusual = self._is_rebuilt or _shape(num_tokens, num_rows) not in self._shapes
        return max(floor, rules.factor * expected) * (rules.unusual_factor if is_unusual else 1.0)

    def observe(self, *, num_tokens: int, context: int, num_rows: int, seconds: float) -> None:
        """Learn from a step that took so many seconds of compute.

        The first step of a shape counts like the others: it may hold a compilation, which makes
        later deadlines too long, but it may also be the only prefill that was ever seen.
        """
        terms = (1, num_tokens, context)
        for row, one in enumerate(terms):
            for column, other in enumerate(terms):
                self._products[row][column] += one * other
            self._moments[row] += one * seconds
        self._num_steps += 1
        self._is_rebuilt = False
        shape = _shape(num_tokens, num_rows)
        if shape not in self._shapes or self._num_steps % self._rules.refit_every == 0:
            self._shapes.add(shape)
            self._coefficients = _fit(np.array(self._products), np.array(self._moments)).tolist()

    def note_rebuild(self) -> None:
        """Give the next steps more time, until one was observed: the rank has a new generation."""
        self._is_rebuilt = True


def context_of(output: SchedulerOutput) -> int:
    """Tokens computed before a step, summed over its rows."""
    return int(output.cached_requests.num_computed_tokens.sum()) + sum(
        new.num_computed_tokens for new in output.new_requests
    )


def compute_seconds(timings: StepTimings) -> float:
    """Seconds a step computed, without its wait for the previous stage."""
    elapsed = timings.compute_end_ns - timings.compute_start_ns
    return max(0, elapsed) / NANOSECONDS


def _shape(num_tokens: int, num_rows: int) -> Shape:
    return _power_of_two(num_tokens), _power_of_two(num_rows)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not less; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


def _fit(products: Floats, moments: Floats) -> Floats:
    """The least squares solution without negative coefficients.

    A negative coefficient is noise, and would promise that more work takes less time: the most
    negative one is left out until none is left. Where the steps seen cannot tell two terms apart
    (only decodes of one sequence: the constant from the tokens), they share what was measured.
    """
    coefficients = np.zeros(NUM_COEFFICIENTS)
    kept = [term for term in range(NUM_COEFFICIENTS) if products[term, term] > 0]
    while kept:
        # Each term is scaled to unit length; contexts of a million would drown the constant.
        scales = np.sqrt(products[kept, kept])
        scaled = products[np.ix_(kept, kept)] / np.outer(scales, scales)
        solution = np.linalg.lstsq(scaled, moments[kept] / scales, rcond=None)[0] / scales
        lowest = int(np.argmin(solution))
        if solution[lowest] >= 0:
            coefficients[kept] = solution
            break
        del kept[lowest]
    return coefficients
