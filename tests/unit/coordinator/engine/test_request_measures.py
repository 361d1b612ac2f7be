"""Facts of what is counted of requests."""

import pytest

from coordinator.engine.request_measures import RequestMeasures
from coordinator.engine.request_times import RequestTimes
from tests.fakes.scripted_replica import request


def times(**moments: float) -> RequestTimes:
    """The moments of a request that arrived at 10 s."""
    noted = RequestTimes(arrived=10.0)
    for name, moment in moments.items():
        setattr(noted, name, moment)
    return noted


def test_tokens_of_a_step_are_counted_by_what_passed_since_the_last():
    """First tokens count from the arrival; later ones from the request's own last token."""
    measures = RequestMeasures()
    first, early, also_early, late = (
        times(),
        times(first_token=11.0, last_token=19.0),
        times(first_token=11.0, last_token=19.0),
        times(first_token=11.0, last_token=18.0),
    )
    measures.note_tokens([early, first, also_early, late, early], now=20.0)
    assert first.first_token == first.last_token == 20.0
    assert measures.first_token.total == 10.0
    assert measures.between_tokens.num_values == 4
    assert measures.between_tokens.total == 1.0 + 1.0 + 2.0 + 0.0
    measures.note_tokens([first, late], now=20.5)
    assert measures.first_token.num_values == 1
    assert measures.between_tokens.num_values == 6
    assert measures.between_tokens.total == 5.0


def test_a_step_without_tokens_counts_nothing():
    """No row, no value."""
    measures = RequestMeasures()
    measures.note_tokens([], now=5.0)
    assert measures.between_tokens.num_values == measures.first_token.num_values == 0


def test_the_parts_of_a_request_add_up():
    """Queue, prefill and decode lie between arrival and the last token, and so does all of it."""
    measures = RequestMeasures()
    moments = times(queued=10.5, scheduled=12.0, first_token=15.0, last_token=19.0)
    asked = request((1, 2, 3), max_tokens=8)
    measures.note_ended(asked, moments, end="stop", num_tokens=5, now=30.0)
    assert measures.num_ended == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    assert measures.queued.total == 1.5
    assert measures.prefill.total == 3.0
    assert measures.decode.total == 4.0
    assert measures.inference.total == 7.0
    assert measures.latency.total == 9.0, "the reader took the rest"
    assert measures.per_output_token.total == pytest.approx(1.0)
    assert (measures.prompt_tokens.total, measures.generated_tokens.total) == (3, 5)
    assert measures.max_tokens.total == 8


def test_a_request_that_ended_early_counts_where_it_came_to():
    """One that was left while it waited has a latency and no time in a step."""
    measures = RequestMeasures()
    asked = request((1,), max_tokens=8)
    measures.note_ended(asked, times(queued=10.5), end="abort", num_tokens=0, now=13.0)
    assert measures.num_ended["abort"] == 1
    assert measures.latency.total == 3.0
    assert measures.queued.num_values == measures.inference.num_values == 0


def test_a_single_token_has_no_time_between_tokens():
    """Its mean is 0, as vLLM tells it."""
    measures = RequestMeasures()
    moments = times(queued=10.0, scheduled=10.0, first_token=11.0, last_token=11.0)
    asked = request((1,), max_tokens=1)
    measures.note_ended(asked, moments, end="length", num_tokens=1, now=11.0)
    assert (measures.per_output_token.num_values, measures.per_output_token.total) == (1, 0.0)
