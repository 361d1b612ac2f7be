"""Rates over time, from counts that grow."""

from coordinator.engine.cluster_status import ClusterStatus
from coordinator.engine.load_history import LoadHistory


def status(*, generated: int = 0, prompt: int = 0) -> ClusterStatus:
    """A status with these counts of tokens, two requests running and a quarter of the cache in use."""
    return ClusterStatus(
        model="tiny",
        num_generated_tokens=generated,
        num_prompt_tokens=prompt,
        num_running=2,
        num_waiting=3,
        num_blocks=8,
        num_free_blocks=6,
    )


def test_rates_are_those_since_the_last_sample():
    """What was counted before the first sample is no rate."""
    history = LoadHistory(max_samples=10)
    history.note(status(generated=1000, prompt=500), at=10.0)
    history.note(status(generated=1050, prompt=600), at=10.5)
    first, second = history.samples
    assert (first.generated_rate, first.prompt_rate) == (0.0, 0.0)
    assert (second.generated_rate, second.prompt_rate) == (100.0, 200.0)
    assert (second.num_running, second.num_waiting, second.kv_usage) == (2, 3, 0.25)


def test_a_coordinator_that_counts_anew_has_no_negative_rate():
    """Counts that fell, and a clock that stood, are a rate of 0."""
    history = LoadHistory(max_samples=10)
    history.note(status(generated=1000), at=1.0)
    assert history.note(status(generated=4), at=2.0).generated_rate == 0.0
    assert history.note(status(generated=8), at=2.0).generated_rate == 0.0
    assert history.note(status(generated=12), at=3.0).generated_rate == 4.0


def test_the_oldest_samples_are_forgotten():
    """The history is bounded, and its rates go on."""
    history = LoadHistory(max_samples=2)
    for second in range(5):
        history.note(status(generated=7 * second), at=float(second))
    assert [(sample.at, sample.generated_rate) for sample in history.samples] == [(3, 7), (4, 7)]


def test_no_blocks_are_no_usage():
    """Before there is a cache its usage is 0."""
    assert ClusterStatus(model="tiny").kv_usage == 0.0
