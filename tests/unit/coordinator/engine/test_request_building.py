"""Choices left to us are made before the scheduler sees a request, and every output is one."""

import pytest

from common.errors import ContextLengthExceeded, InvalidRequest
from common.requests import Request
from coordinator.engine.generation import ChatTurn, GenerationInput, ServedModel
from coordinator.engine.request_building import build_requests, sequence_ids

MODEL = ServedModel(name="tiny", max_model_len=8, vocab_size=100, created=1)


def asked(**options) -> GenerationInput:
    """A request that is right but for the options."""
    return GenerationInput(**({"request_id": "r", "prompts": ((1, 2),)} | options))


def built(**options) -> Request:
    """The request made of a two-token prompt and the options."""
    (request,) = build_requests(asked(**options), [(1, 2)], model=MODEL, draw_seed=lambda: 7)
    return request


def test_a_prompt_leaves_room_for_one_token():
    """One token less than the model's length is the longest prompt."""
    (request,) = build_requests(asked(), [(1,) * 7], model=MODEL, draw_seed=lambda: 7)
    assert request.stopping.max_tokens == 1
    with pytest.raises(ContextLengthExceeded, match="at most 7") as caught:
        build_requests(asked(), [(1,) * 8], model=MODEL, draw_seed=lambda: 7)
    assert caught.value.param == "prompt"


def test_a_conversation_that_is_too_long_is_told_by_its_own_field():
    """Clients who sent messages know no prompt."""
    chat = asked(prompts=((ChatTurn(role="user", content="x"),),))
    with pytest.raises(ContextLengthExceeded, match="messages") as caught:
        build_requests(chat, [(1,) * 8], model=MODEL, draw_seed=lambda: 7)
    assert caught.value.param == "messages"


def test_each_output_is_a_request_of_its_own():
    """Outputs of one prompt follow each other; names count from 0, seeds up from the given one."""
    wanted = asked(prompts=((1,), (2, 3)), n=2, seed=2**64 - 1)
    built = build_requests(wanted, [(1,), (2, 3)], model=MODEL, draw_seed=lambda: 7)
    assert [request.request_id for request in built] == ["r.0", "r.1", "r.2", "r.3"]
    assert [request.prompt_token_ids for request in built] == [(1,), (1,), (2, 3), (2, 3)]
    assert [request.sampling.seed for request in built] == [2**64 - 1, 0, 2**64 - 1, 0]
    assert sequence_ids(wanted) == tuple(request.request_id for request in built)


def test_seeds_left_to_us_are_drawn_for_each_output():
    """Two outputs of one prompt do not draw the same tokens."""
    seeds = iter((5, 9))
    built = build_requests(asked(n=2), [(1, 2)], model=MODEL, draw_seed=lambda: next(seeds))
    assert [request.sampling.seed for request in built] == [5, 9]


def test_one_prompt_that_is_too_long_refuses_the_whole_request():
    """Of several prompts all are answered or none."""
    with pytest.raises(ContextLengthExceeded):
        build_requests(
            asked(prompts=((1,), (2,))), [(1,), (1,) * 8], model=MODEL, draw_seed=lambda: 7
        )


def test_a_text_without_tokens_is_refused():
    """A prompt the tokenizer makes nothing of is empty too."""
    with pytest.raises(InvalidRequest, match="no tokens"):
        build_requests(asked(prompts=(" ",)), [()], model=MODEL, draw_seed=lambda: 7)


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


def test_a_tiny_repetition_penalty_is_raised():
    """Workers would refuse the step of one that rounds to 0, and logits overflow behind small ones."""
    assert built().sampling.repetition_penalty == 1.0
    assert built(repetition_penalty=1e-60).sampling.repetition_penalty == pytest.approx(1e-6)


def test_extra_arguments_are_sorted():
    """Processors run in the order of their names, however a client's map had them."""
    extra_args = (("b", "1"), ("a", "2"))
    assert built(extra_args=extra_args).sampling.extra_args == (("a", "2"), ("b", "1"))


def test_top_k_is_cut_to_the_vocabulary():
    """-1 and 0 keep all tokens; more than there are means all there are."""
    assert [built(top_k=top_k).sampling.top_k for top_k in (-1, 0, 5, 1000)] == [0, 0, 5, 100]


def test_a_negative_seed_is_a_seed():
    """Seeds are taken modulo 2**64."""
    assert built(seed=-1).sampling.seed == 2**64 - 1
    assert built().sampling.seed == 7
