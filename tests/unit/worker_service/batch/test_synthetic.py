"""Made-up steps."""

import pytest

from worker_service.batch.synthetic import StepSizes, largest_step, warm_up_steps


def sizes(*, tokens: int, seqs: int, length: int = 100) -> StepSizes:
    """Step limits with blocks of 4."""
    return StepSizes(
        max_num_batched_tokens=tokens, max_num_seqs=seqs, max_model_len=length, block_size=4
    )


@pytest.mark.parametrize(
    ("limits", "lengths"),
    [
        (sizes(tokens=10, seqs=4), [3, 3, 2, 2]),
        (sizes(tokens=3, seqs=8), [1, 1, 1]),
        (sizes(tokens=500, seqs=2), [100, 100]),
    ],
    ids=["even", "fewer tokens than rows", "limited by length"],
)
def test_the_largest_step_fills_its_limits(limits, lengths):
    """As many tokens and rows as allowed, spread evenly, each row complete so that it samples."""
    step = next(largest_step(limits))
    assert step.num_scheduled_tokens.tolist() == lengths
    assert [len(request.token_ids) for request in step.new_requests] == lengths


@pytest.mark.parametrize("series", [largest_step, warm_up_steps])
def test_made_up_requests_touch_only_the_null_block_and_are_finished(series):
    """Every table holds zeros, and the last step drops every handle the first one added."""
    steps = list(series(sizes(tokens=50, seqs=3)))
    added = [request.handle for step in steps for request in step.new_requests]
    assert all(not request.block_ids[0].any() for request in steps[0].new_requests)
    assert not any(step.cached_requests.new_block_ids[0].values.any() for step in steps)
    assert steps[-1].finished_handles.tolist() == added
    assert steps[-1].num_rows == 0


def test_the_warm_up_prefills_and_decodes():
    """The second step computes one new token for each row of the first."""
    prefill, decode, _ = warm_up_steps(sizes(tokens=50, seqs=3))
    cached = decode.cached_requests
    assert cached.handles.tolist() == [request.handle for request in prefill.new_requests]
    assert cached.num_computed_tokens.tolist() == prefill.num_scheduled_tokens.tolist()
    assert decode.num_scheduled_tokens.tolist() == [1, 1, 1]
