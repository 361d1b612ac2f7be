"""What rows emit of their drafts and of what the target draws."""

import numpy as np

from common.step import Logprobs, Ragged
from worker_service.sampling.rejection_sampler import EmittedTokens, accept_drafts
from worker_service.sampling.sampler import SamplerOutput


def _sampled(tokens: list[int | None], *, has_logprobs: bool = False) -> SamplerOutput:
    """One token for each logits row, None where nothing could be drawn."""
    drawn = np.array([token for token in tokens if token is not None], dtype=np.int32)
    logprobs = Logprobs(
        token_ids=drawn[:, None],
        logprobs=-drawn[:, None].astype(np.float32),
        ranks=np.ones(len(drawn), dtype=np.int32),
    )
    return SamplerOutput(
        is_sampled=np.array([token is not None for token in tokens]),
        token_ids=drawn,
        logprobs=logprobs if has_logprobs else None,
        errors={row: f"row {row}" for row, token in enumerate(tokens) if token is None},
    )


def _rows(emitted: EmittedTokens) -> list[list[int]]:
    tokens = emitted.token_ids
    return [tokens.row(index).tolist() for index in range(tokens.num_rows)]


def test_drafts_stand_up_to_the_first_that_differs():
    """All of them and one more, none but the target's own, some of them, and a row without any."""
    drafts = Ragged.from_rows([[1, 2], [5, 6], [7, 8, 9], []])
    emitted = accept_drafts(_sampled([1, 2, 3, 4, 6, 0, 7, 0, 9, 0, 11]), drafts)
    assert _rows(emitted) == [[1, 2, 3], [4], [7, 0], [11]]
    assert emitted.logits_rows.tolist() == [0, 1, 2, 3, 6, 7, 10]


def test_a_draft_that_is_right_behind_a_wrong_one_does_not_count():
    """What the target draws behind a wrong draft is of another sequence."""
    emitted = accept_drafts(_sampled([4, 2, 3]), Ragged.from_rows([[1, 2]]))
    assert _rows(emitted) == [[4]]


def test_without_drafts_every_row_emits_its_token():
    """The plain step."""
    emitted = accept_drafts(_sampled([4, None, 5], has_logprobs=True), Ragged.empty(3))
    assert _rows(emitted) == [[4], [5]]
    assert emitted.is_sampled.tolist() == [True, False, True]
    assert emitted.logits_rows.tolist() == [0, 2]


def test_a_row_fails_only_where_it_would_emit():
    """Logits that are no numbers behind a rejected draft are nobody's; before it they fail the row."""
    drafts = Ragged.from_rows([[1, 2], [5, 6], [7]])
    emitted = accept_drafts(_sampled([3, None, None, 5, None, 0, 8, 9]), drafts)
    assert emitted.is_sampled.tolist() == [True, False, True]
    assert emitted.errors == {1: "row 4"}
    assert _rows(emitted) == [[3], [8]]


def test_log_probabilities_are_those_of_the_emitted_tokens():
    """One position for each token, in their order."""
    drafts = Ragged.from_rows([[1, 2], [5]])
    emitted = accept_drafts(_sampled([1, 4, None, 6, 7], has_logprobs=True), drafts)
    assert _rows(emitted) == [[1, 4], [6]]
    assert emitted.logprobs is not None
    assert emitted.logprobs.token_ids[:, 0].tolist() == [1, 4, 6]
    assert emitted.logprobs.logprobs[:, 0].tolist() == [-1, -4, -6]
    assert len(emitted.logprobs.ranks) == 3


def test_another_rule_decides_what_stands():
    """The rule is an argument; what stands is emitted as it was proposed."""

    def anything(drafts, target_tokens):
        return np.ones(len(drafts), dtype=np.bool_)

    emitted = accept_drafts(_sampled([3, 4, 5]), Ragged.from_rows([[1, 2]]), may_stand=anything)
    assert _rows(emitted) == [[1, 2, 5]]
