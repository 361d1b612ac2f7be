"""One table of limits refuses, by name, what no worker may see."""

import math

import pytest

from common.errors import InvalidRequest, NotFound
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel
from coordinator.engine.limits import build_request, check_input

MODEL = ServedModel(name="tiny", max_model_len=8, vocab_size=100, created=1)
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
    ("logprobs", {"logprobs": -1}),
    ("stop", {"stop": ("",)}),
    ("stop", {"stop": ("x" * 257,)}),
    ("stop", {"stop": ("x",) * 17}),
    ("stop_token_ids", {"stop_token_ids": (100,)}),
    ("stop_token_ids", {"stop_token_ids": (-1,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * 129}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": ()}),
    ("prompt", {"prompt": (0, 100)}),
    ("prompt", {"prompt": (-1,)}),
    ("messages", {"prompt": (ChatTurn(role="wizard", content="x"),)}),
    ("messages", {"prompt": (ChatTurn(role="user", content="\ud800"),)}),
    ("prompt", {"prompt": "x\udfff"}),
    ("stop", {"stop": ("\ud800",)}),
    ("request_id", {"request_id": "x" * 129}),
]


def asked(**options) -> GenerationInput:
    """A request that is right but for the options."""
    return GenerationInput(**({"request_id": "r", "prompt": (1, 2)} | options))


def built(**options):
    """The request made of a two-token prompt and the options."""
    return build_request(asked(**options), (1, 2), model=MODEL, draw_seed=lambda: 7)


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
    for request in (low, high, asked(seed=2**64 - 1), asked(seed=-1), asked(model="tiny")):
        check_input(request, model=MODEL)


def test_another_model_is_not_found():
    """A model that is not served is NotFound, with the name of the one that is."""
    with pytest.raises(NotFound, match="'tiny' is served"):
        check_input(asked(model="huge"), model=MODEL)


def test_a_prompt_leaves_room_for_one_token():
    """One token less than the model's length is the longest prompt."""
    request = build_request(asked(), (1,) * 7, model=MODEL, draw_seed=lambda: 7)
    assert request.stopping.max_tokens == 1
    with pytest.raises(InvalidRequest, match="at most 7"):
        build_request(asked(), (1,) * 8, model=MODEL, draw_seed=lambda: 7)


def test_a_text_without_tokens_is_refused():
    """A prompt the tokenizer makes nothing of is empty too."""
    with pytest.raises(InvalidRequest, match="no tokens"):
        build_request(asked(prompt=" "), (), model=MODEL, draw_seed=lambda: 7)


def test_output_ends_at_the_models_length():
    """More tokens than fit are cut to what fits."""
    assert built(max_tokens=1000).stopping.max_tokens == 6
    assert built(max_tokens=3).stopping.max_tokens == 3


def test_values_are_those_the_wire_carries():
    """Numbers are rounded to float32, so that workers here and elsewhere sample alike."""
    assert built(temperature=0.8).sampling.temperature == pytest.approx(0.8, rel=1e-7)
    assert built(temperature=0.8).sampling.temperature != 0.8
    assert built(top_p=1e-60).sampling.top_p > 0


def test_a_tiny_temperature_is_raised_and_zero_stays_greedy():
    """Between 0 and 0.01 counts as 0.01."""
    assert built(temperature=0.0).sampling.temperature == 0.0
    assert built(temperature=1e-30).sampling.temperature == pytest.approx(0.01)


def test_top_k_is_cut_to_the_vocabulary():
    """-1 and 0 keep all tokens; more than there are means all there are."""
    assert [built(top_k=top_k).sampling.top_k for top_k in (-1, 0, 5, 1000)] == [0, 0, 5, 100]


def test_a_negative_seed_is_a_seed():
    """Seeds are taken modulo 2**64."""
    assert built(seed=-1).sampling.seed == 2**64 - 1
    assert built().sampling.seed == 7
