"""What no worker may see is refused by name before the prompt is tokenized."""

import math

import pytest

from common.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel
from coordinator.engine.request_checks import check_input, check_text_length

MODEL = ServedModel(name="tiny", max_model_len=8, vocab_size=100, created=1, max_sequences=64)
INFINITY = math.inf

REFUSED = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": INFINITY}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": math.nan}),
    ("min_p", {"min_p": -0.01}),
    ("min_p", {"min_p": 1.5}),
    ("min_p", {"min_p": math.nan}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 2**31}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": -(2**63) - 1}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -2}),
    ("stop", {"stop": ("",)}),
    ("stop", {"stop": ("x" * 257,)}),
    ("stop", {"stop": ("x",) * 17}),
    ("stop_token_ids", {"stop_token_ids": (100,)}),
    ("stop_token_ids", {"stop_token_ids": (-1,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * 129}),
    ("prompt", {"prompts": ("",)}),
    ("prompt", {"prompts": ((),)}),
    ("prompt", {"prompts": ((0, 100),)}),
    ("prompt", {"prompts": ((-1,),)}),
    ("messages", {"prompts": ((ChatTurn(role="wizard", content="x"),),)}),
    ("messages", {"prompts": ((ChatTurn(role="user", content="\ud800"),),)}),
    ("prompt", {"prompts": ("x\udfff",)}),
    ("stop", {"stop": ("\ud800",)}),
    ("prompt", {"prompts": ()}),
    ("prompt", {"prompts": ((1,), ())}),
    ("prompt", {"prompts": ((1,),) * 33, "n": 2}),
    ("messages", {"prompts": ((ChatTurn(role="user", content="x"),) * 4097,)}),
    ("n", {"n": 0}),
    ("n", {"n": 129}),
    ("request_id", {"request_id": "x" * 129}),
    ("request_id", {"request_id": "two words"}),
    ("request_id", {"request_id": "gr\u00f6\u00dfer"}),
    ("request_id", {"request_id": "line\nbreak"}),
]


def asked(**options) -> GenerationInput:
    """A request that is right but for the options."""
    return GenerationInput(**({"request_id": "r", "prompts": ((1, 2),)} | options))


@pytest.mark.parametrize(("field", "options"), REFUSED)
def test_a_value_out_of_range_is_refused_by_name(field, options):
    """The error names the field, in its text and as `param`."""
    with pytest.raises(InvalidRequest, match=field) as caught:
        check_input(asked(**options), model=MODEL)
    assert caught.value.param == field


def test_the_ends_of_the_ranges_are_allowed():
    """Limits are inclusive; nothing is refused at them."""
    low = asked(temperature=0.0, top_p=1e-9, min_p=0.0, top_k=-1, max_tokens=1, logprobs=0)
    high = asked(temperature=2.0, top_p=1.0, min_p=1.0, top_k=2**31 - 1, logprobs=20)
    for request in (
        low,
        high,
        asked(seed=2**64 - 1),
        asked(seed=-1),
        asked(model="tiny"),
        asked(n=32, prompts=((1,), (2,))),
    ):
        check_input(request, model=MODEL)


def test_another_model_is_not_found():
    """A model that is not served is ModelNotFound, with the name of the one that is."""
    with pytest.raises(ModelNotFound, match="'tiny' is served") as caught:
        check_input(asked(model="huge"), model=MODEL)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [("x" * 25, "prompt"), ((ChatTurn(role="user", content="x" * 13),) * 2, "messages")],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(prompt, field):
    """Eight tokens of at most three characters hold 24."""
    with pytest.raises(ContextLengthExceeded, match=field) as caught:
        check_text_length(prompt, max_token_characters=3, model=MODEL)
    assert caught.value.param == field
    for fitting in ("x" * 24, (1,) * 100, (ChatTurn(role="user", content="x" * 12),) * 2):
        check_text_length(fitting, max_token_characters=3, model=MODEL)


def test_token_ids_that_cannot_fit_are_refused_before_they_are_looked_at():
    """A million ids out of the vocabulary are told as too many."""
    with pytest.raises(ContextLengthExceeded, match="at most 7"):
        check_input(asked(prompts=((100,) * 8,)), model=MODEL)


def test_an_error_repeats_no_more_than_the_beginning():
    """A name of megabytes is not sent back."""
    with pytest.raises(ModelNotFound) as caught:
        check_input(asked(model="x" * 1_000_000), model=MODEL)
    assert len(str(caught.value)) < 200
