"""Rows that can be sampled from."""

import math

import pytest
import torch

from worker_service.sampling.logit_check import finite_rows


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_one_broken_element_marks_only_its_row(broken):
    """NaN and both infinities are found; the other rows stay good."""
    logits = torch.zeros(3, 50)
    logits[1, 17] = broken
    assert finite_rows(logits).tolist() == [True, False, True]


def test_opposite_infinities_and_overflowing_sums_are_told_apart():
    """A sum that overflows over finite logits does not fail the row."""
    logits = torch.zeros(2, 4)
    logits[0] = 3e38
    logits[1, :2] = torch.tensor([math.inf, -math.inf])
    assert finite_rows(logits).tolist() == [True, False]
