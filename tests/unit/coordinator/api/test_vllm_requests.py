"""Requests of gateways for vLLM are read as they mean them, and refused by name where they cannot be."""

import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

from common.errors import InvalidRequest
from coordinator.api.vllm_requests import decode_generate
from coordinator.engine.generation import GenerationInput
from coordinator.structured.constraint import Constraint, ConstraintKind


def asking(**params) -> pb.GenerateRequest:
    """A request with two tokens and these sampling parameters."""
    return pb.GenerateRequest(
        request_id="a",
        tokenized=pb.TokenizedInput(original_text="hi", input_ids=[3, 4]),
        sampling_params=pb.SamplingParams(**params),
    )


def test_zero_leaves_the_choice_to_us():
    """Numbers that were not set are defaults; greedy and one seed are not, though they are 0."""
    assert decode_generate(asking()) == GenerationInput(
        request_id="a", prompts=((3, 4),), top_k=0, min_p=0.0
    )
    asked = decode_generate(asking(temperature=0.0, seed=0, logprobs=0, max_tokens=0))
    assert (asked.temperature, asked.seed, asked.logprobs, asked.max_tokens) == (0.0, 0, 0, 0)


def test_what_is_set_is_asked():
    """Every field that means something to us reaches the engine."""
    params = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "n": 3, "seed": -1}
    params |= {"max_tokens": 9, "stop": ["x"], "stop_token_ids": [5], "ignore_eos": True}
    assert decode_generate(asking(**params, logprobs=2)) == GenerationInput(
        request_id="a",
        prompts=((3, 4),),
        n=3,
        max_tokens=9,
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        seed=-1,
        stop=("x",),
        stop_token_ids=(5,),
        ignore_eos=True,
        logprobs=2,
    )


def test_text_is_a_prompt_too():
    """A prompt that was not tokenized is left to our tokenizer; an id is made where there is none."""
    asked = decode_generate(pb.GenerateRequest(text="hi"))
    assert asked.prompts == ("hi",)
    assert asked.request_id.startswith("vllm-")


def test_values_that_ask_for_nothing_pass():
    """Neutral penalties, the only replica, and what concerns the text alone are no reason to refuse."""
    request = asking(
        repetition_penalty=1.0,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        include_stop_str_in_output=True,
    )
    request.data_parallel_rank = 0
    assert decode_generate(request).prompts == ((3, 4),)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": -1}),
        ("structural_tag", {"structural_tag": "{}"}),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, params: dict):
    """A constraint or penalty is never ignored."""
    with pytest.raises(InvalidRequest, match=f"{field} is not supported") as caught:
        decode_generate(asking(**params))
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mm_inputs", pb.MultimodalInputs()),
        ("extra_mm_inputs", [pb.MultimodalInputs()]),
        ("media_refs", pb.MediaRefs()),
        ("kv_transfer_params", pb.KvTransferParams()),
        ("kv_transfer_params_json", "{}"),
        ("data_parallel_rank", 1),
    ],
)
def test_images_and_other_ranks_are_refused_by_name(field: str, value: object):
    """What a request brings beside its tokens is never dropped."""
    request = asking()
    request.MergeFrom(pb.GenerateRequest(**{field: value}))
    with pytest.raises(InvalidRequest, match=f"{field} is not supported"):
        decode_generate(request)


def test_edits_of_logits_are_read():
    """Penalties, biases and the minimum length reach the engine; the zero of a number is its default."""
    asked = decode_generate(
        asking(
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            min_tokens=3,
            logit_bias={5: 1.0},
            prompt_logprobs=2,
        )
    )
    assert (asked.repetition_penalty, asked.frequency_penalty) == (1.5, 0.5)
    assert (asked.presence_penalty, asked.min_tokens) == (-0.5, 3)
    assert (asked.logit_bias, asked.prompt_logprobs) == (((5, 1.0),), 2)
    assert decode_generate(asking()).repetition_penalty is None
    assert decode_generate(asking()).prompt_logprobs is None


@pytest.mark.parametrize(
    ("params", "constraint"),
    [
        ({"json_schema": "{}"}, Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{}")),
        ({"regex": "a*"}, Constraint(kind=ConstraintKind.REGEX, text="a*")),
        ({"grammar": "root ::= x"}, Constraint(kind=ConstraintKind.GRAMMAR, text="root ::= x")),
        ({"json_object": True}, Constraint(kind=ConstraintKind.JSON_OBJECT)),
        ({"json_object": False}, None),
        (
            {"choice": pb.ChoiceConstraint(choices=["a", "b"])},
            Constraint(kind=ConstraintKind.CHOICE, choices=("a", "b")),
        ),
    ],
)
def test_constraints_are_read(params: dict, constraint: Constraint | None):
    """Every arm that gateways send reaches the engine."""
    assert decode_generate(asking(**params)).constraint == constraint
