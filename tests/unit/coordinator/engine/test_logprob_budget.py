"""Log-probabilities of whole vocabularies are bounded, of one request and of all together."""

import pytest

from common.errors import InvalidRequest, Overloaded
from common.requests import Request
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.engine.logprob_budget import LogprobBudget, count_whole_vocabularies
from coordinator.engine.request_building import build_requests

MODEL = ServedModel(name="tiny", max_model_len=4096, vocab_size=1 << 16, created=1)


def requests(**options) -> tuple[Request, ...]:
    """The outputs of a prompt of three tokens."""
    asked = GenerationInput(request_id="r", prompts=((1, 2, 3),), **options)
    return build_requests(asked, [(1, 2, 3)], model=MODEL, draw_seed=lambda: 7)


def test_positions_of_prompts_and_outputs_count():
    """Each counts as many values as the vocabulary has tokens; a few alternatives count nothing."""
    both = requests(logprobs=-1, prompt_logprobs=-1, max_tokens=4, n=2)
    assert count_whole_vocabularies(both, model=MODEL) == 2 * (4 + 3) << 16
    few = requests(logprobs=20, prompt_logprobs=20, n=2)
    assert count_whole_vocabularies(few, model=MODEL) == 0


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("logprobs", {"logprobs": -1}),
        ("logprobs", {"logprobs": -1, "max_tokens": 17}),
        ("prompt_logprobs", {"prompt_logprobs": -1, "n": 6}),
    ],
)
def test_too_many_are_refused_by_their_field(field, options):
    """An output without max_tokens may have all that fit into the model."""
    with pytest.raises(InvalidRequest, match="1048576") as caught:
        count_whole_vocabularies(requests(**options), model=MODEL)
    assert caught.value.param == field


def test_what_is_given_back_can_be_taken_again():
    """A request that does not fit beside the open ones comes again later."""
    budget = LogprobBudget(10)
    budget.take(6)
    with pytest.raises(Overloaded):
        budget.take(5)
    budget.take(4)
    budget.give_back(6)
    budget.take(5)
