"""Sampling parameters in slots."""

import numpy as np

from common.requests import SamplingParams
from worker_service.sampling.sampling_states import NO_LOGPROBS, SamplingStates


def test_rows_gather_the_parameters_of_their_slots():
    """Values come back per slot in the order asked for; slots grow, and a new owner replaces the old."""
    states = SamplingStates(num_slots=1)
    states.replace(0, SamplingParams(temperature=0.5, top_k=3, num_logprobs=4))
    states.replace(9, SamplingParams(top_p=0.25, min_p=0.125, seed=(1 << 64) - 2))
    states.replace(0, SamplingParams(temperature=2.0))
    rows = states.rows(np.array([9, 0]), positions=np.array([70, 80]))
    assert rows.temperature.tolist() == [1.0, 2.0]
    assert rows.top_k.tolist() == [0, 0]
    assert rows.top_p.tolist() == [0.25, 1.0]
    assert rows.min_p.tolist() == [0.125, 0.0]
    assert rows.seeds.tolist() == [-2, 0]
    assert rows.num_logprobs.tolist() == [NO_LOGPROBS, NO_LOGPROBS]
    assert rows.positions.tolist() == [70, 80]
