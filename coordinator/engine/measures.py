"""All that is counted while a coordinator serves, for whoever wants to tell it. Plain values."""

from coordinator.engine.request_measures import RequestMeasures
from coordinator.engine.step_measures import StepMeasures


class Measures:
    """One object for the life of a process, written by engine, loop and replica.

    num_rebuilds: worker groups that took the place of a lost one.
    """

    def __init__(self) -> None:
        self.requests = RequestMeasures()
        self.steps = StepMeasures()
        self.num_generations_lost = 0
        self.num_rebuilds = 0
