"""The rate of generated tokens that gateways are told."""

from coordinator.api.vllm_load import GenerationRate
from tests.fakes.manual_clock import ManualClock


def test_the_rate_is_that_between_two_looks():
    """A look less than a second after the last one repeats what that one saw."""
    clock = ManualClock()
    rate = GenerationRate(clock)
    clock.advance(2.0)
    assert rate.update(100) == 50.0
    clock.advance(0.5)
    assert rate.update(140) == 50.0
    clock.advance(1.5)
    assert rate.update(140) == 20.0
    clock.advance(1.0)
    assert rate.update(140) == 0.0
