"""Made-up steps."""

import pytest

from worker_service.batch.synthetic import StepSizes, largest_step, warm_up_steps


def sizes(*, tokens: int, seqs: int, length: int = 100, drafts: int = 0) -> StepSizes:
    """Step limits with blocks of 4."""
    return StepSizes(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        max_model_len=length,
        block_size=4,
        most_drafts=drafts,
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


def test_the_largest_steps_with_drafts_sample_all_of_them():
    """After the most tokens come the most rows with all drafts, which needs the most logits."""
    steps = list(largest_step(sizes(tokens=50, seqs=9, drafts=5)))
    assert steps[0].total_num_scheduled_tokens == 50
    assert steps[0].num_drafts_wanted.tolist() == [5] * 9
    verify = steps[3]
    assert verify.num_scheduled_tokens.tolist() == [6] * 8
    assert verify.cached_requests.draft_token_ids is not None
    assert verify.cached_requests.draft_token_ids.lengths.tolist() == [5] * 8
    assert verify.num_drafts_wanted.tolist() == [5] * 8
    assert steps[-1].finished_handles.tolist() == verify.handles


@pytest.mark.parametrize(
    ("limits", "num_drafts"),
    [
        (sizes(tokens=50, seqs=3, drafts=5), 5),
        (sizes(tokens=4, seqs=3, drafts=5), 3),
        (sizes(tokens=50, seqs=3, length=4, drafts=5), 2),
        (sizes(tokens=50, seqs=3, length=2, drafts=5), 0),
    ],
    ids=["all", "few tokens a step", "short sequences", "no room"],
)
def test_the_warm_up_decodes_with_as_many_drafts_as_fit(limits, num_drafts):
    """Within the tokens of a step and of a sequence, whatever was asked for."""
    for steps in (list(warm_up_steps(limits)), list(largest_step(limits))):
        for step in steps:
            assert step.total_num_scheduled_tokens <= limits.max_num_batched_tokens
    prefill, decode, _ = warm_up_steps(limits)
    assert set(decode.num_scheduled_tokens.tolist()) == {1 + num_drafts}
    longest = prefill.num_scheduled_tokens + decode.num_scheduled_tokens
    assert longest.max() <= limits.max_model_len
    room = [4 * len(request.block_ids[0]) for request in prefill.new_requests]
    assert all(count <= blocks for count, blocks in zip(longest.tolist(), room, strict=True))
