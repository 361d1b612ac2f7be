"""Drafts that are looked up in the sequence itself."""

import numpy as np
import pytest
import torch

from common.requests import SamplingParams
from common.step import NewRequest
from worker_service.batch.request_states import RequestStates
from worker_service.drafting.drafter import SampledRows
from worker_service.drafting.ngram import MOST_TOKENS_SEARCHED, NgramDrafter, find_continuation


@pytest.mark.parametrize(
    ("tokens", "most", "found"),
    [
        pytest.param([1, 2, 3, 4, 9, 1, 2], 3, [3, 4, 9], id="what followed before"),
        pytest.param([1, 2, 3, 7, 1, 2, 4, 8, 1, 2], 2, [4, 8], id="the latest occurrence"),
        pytest.param([5, 1, 2, 3, 8, 1, 2, 4, 7, 5, 1, 2], 1, [3], id="the longest n-gram"),
        pytest.param([6, 6, 6, 6], 2, [6], id="as many as there are"),
        pytest.param([1, 2, 3, 4], 3, [], id="nothing repeats"),
        pytest.param([1, 2, 9, 2], 3, [], id="too short an n-gram"),
        pytest.param([1, 2, 1, 2], 0, [], id="none wanted"),
        pytest.param([1], 3, [], id="one token"),
    ],
)
def test_a_continuation_is_what_followed(tokens, most, found):
    """Of the longest suffix of two to three tokens that stood there before, as far as it goes."""
    token_ids = np.array(tokens, dtype=np.int32)
    assert find_continuation(token_ids, shortest=2, longest=3, most=most).tolist() == found


def test_the_search_is_bounded():
    """What lies further back than the bound is not found."""
    states = RequestStates(num_slots=1, max_model_len=2 * MOST_TOKENS_SEARCHED, block_size=16)
    tokens = np.arange(MOST_TOKENS_SEARCHED + 8, dtype=np.int32)
    tokens[-2:] = tokens[2:4]
    slot = states.add(
        NewRequest(
            handle=1,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            sampling=SamplingParams(),
            block_ids=(np.zeros(1, np.int32),),
            num_computed_tokens=0,
        )
    )

    def propose(num_known: int) -> list[int]:
        drafter = NgramDrafter(states, prompt_lookup_min=2, prompt_lookup_max=4)
        rows = SampledRows(
            slots=np.array([slot]),
            num_known=np.array([num_known]),
            num_emitted=np.array([1], np.int32),
            num_wanted=np.array([2], np.int32),
            hidden_ED=torch.zeros(1, 1),
        )
        return drafter.propose(rows).row(0).tolist()

    assert propose(len(tokens)) == []
    states.tokens.values[slot, 100:102] = tokens[2:4]
    assert propose(len(tokens)) == [102, 103]
