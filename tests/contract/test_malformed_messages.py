"""Malformed steps, results, tensors and headers are refused, and the refusal names the field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire.v1 import channel_pb2, step_pb2, tensor_pb2, worker_pb2

from common.codecs import result_codec, step_codec, stream_codec, tensor_codec
from common.codecs.channel_codec import (
    decode_channel_header,
    encode_channel_header,
)
from common.codecs.columns import decode_ragged
from common.errors import InvalidStep, TensorError
from common.step import (
    IntermediateTensors,
)
from common.tensors import DType, wire_tensor
from tests.fakes.wire_messages import a_key, a_step, uint32s, uint64s
from tests.fakes.wire_values import unhurried

BROKEN_STEPS = {
    "epoch": lambda step: step.ClearField("epoch"),
    "generation": lambda step: step.ClearField("generation"),
    "base_step": lambda step: setattr(step, "base_step", 3),
    r"new_requests\[0\].token_ids": lambda step: _set(step.new_requests[0], token_ids=b"12345"),
    r"new_requests\[0\].num_prompt_tokens": lambda step: _set(
        step.new_requests[0], num_prompt_tokens=4
    ),
    r"new_requests\[0\].num_computed_tokens": lambda step: _set(
        step.new_requests[0], num_computed_tokens=3
    ),
    r"new_requests\[0\].sampling": lambda step: step.new_requests[0].ClearField("sampling"),
    r"new_requests\[0\].sampling.logit_biases": lambda step: _set(
        step.new_requests[0].sampling, biased_token_ids=uint32s(1)
    ),
    r"new_requests\[0\].sampling.allowed_token_ids": lambda step: _set(
        step.new_requests[0].sampling, allowed_token_ids=b"12345"
    ),
    r"new_requests\[0\].sampling.bad_words: holds": lambda step: _set(
        step.new_requests[0].sampling.bad_words, offsets=uint32s(0, 0)
    ),
    r"new_requests\[0\].block_ids: missing": lambda step: step.new_requests[0].ClearField(
        "block_ids"
    ),
    r"new_requests\[0\].block_ids.offsets": lambda step: _set(
        step.new_requests[0].block_ids, offsets=uint32s(0, 2)
    ),
    "cached_requests.handles": lambda step: _set(step.cached_requests, handles=b"1" * 15),
    "cached_requests.num_computed_tokens": lambda step: _set(
        step.cached_requests, num_computed_tokens=uint32s(1)
    ),
    r"cached_requests.new_block_ids\[0\].values": lambda step: _set(
        step.cached_requests.new_block_ids[0], values=b"123"
    ),
    "cached_requests.new_token_ids.offsets: 2": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 2)
    ),
    "cached_requests.new_token_ids.offsets: the first": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(1, 1, 2)
    ),
    "cached_requests.new_token_ids.offsets: the last": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 1, 3)
    ),
    "cached_requests.new_token_ids.offsets: the entries decrease": lambda step: _set(
        step.cached_requests.new_token_ids, offsets=uint32s(0, 9, 2)
    ),
    "cached_requests.token_source_steps": lambda step: _set(
        step.cached_requests, token_source_steps=uint64s(1)
    ),
    "num_scheduled_tokens": lambda step: _set(step, num_scheduled_tokens=uint32s(1, 1)),
    "handles: handle 10": lambda step: _set(step.cached_requests, handles=uint64s(11, 10)),
    "finished_handles: handle 5": lambda step: _set(step, finished_handles=uint64s(5, 5)),
    "preempted_handles": lambda step: _set(step, preempted_handles=b"1"),
    "block_ids: rows disagree": lambda step: step.cached_requests.new_block_ids.add(
        offsets=uint32s(0, 0, 0)
    ),
}


def _set(message, **values) -> None:
    for name, value in values.items():
        setattr(message, name, value)


@pytest.mark.parametrize("field", BROKEN_STEPS)
def test_broken_step_names_the_field(field):
    """Each way a step can be malformed is InvalidStep, whose message starts with the field."""
    step = a_step()
    step_codec.decode_scheduler_output(step)
    BROKEN_STEPS[field](step)
    with pytest.raises(InvalidStep, match=f"^{field}"):
        step_codec.decode_scheduler_output(step)


@unhurried
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_ragged_column(values, offsets):
    """Whatever bytes come, a ragged column is refused or all its rows can be read."""
    try:
        ragged = decode_ragged(
            step_pb2.RaggedColumn(values=values, offsets=offsets), field="column"
        )
    except InvalidStep:
        return
    rows = [ragged.row(index) for index in range(ragged.num_rows)]
    assert b"".join(row.tobytes() for row in rows) == values


def test_unknown_enum_values():
    """Phases, element types and payload kinds that are not known are refused."""
    with pytest.raises(InvalidStep, match=r"key\.phase"):
        step_codec.decode_step_key(step_pb2.StepKey(epoch=1, generation=1, step=1, phase=9))
    with pytest.raises(TensorError, match="element type 77"):
        tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(name="h", dtype=77))
    no_payload = step_pb2.IntermediateTensors(key=a_key())
    with pytest.raises(TensorError, match="payload"):
        result_codec.decode_intermediate_tensors(no_payload)
    with pytest.raises(InvalidStep, match="item"):
        stream_codec.decode_stream_answer(worker_pb2.RunStepsResponse())


def test_sample_needs_its_phase():
    """A sample call whose key says execute is refused."""
    with pytest.raises(InvalidStep, match=r"key\.phase"):
        stream_codec.decode_sample_tokens(worker_pb2.SampleTokensRequest(key=a_key()))


def test_broken_masks():
    """Positions below 1, and bits that cannot be shared among them, are refused by field."""
    key = step_pb2.StepKey(epoch=1, generation=1, step=1, phase=step_pb2.PHASE_SAMPLE)
    for positions, bits, field in (
        ([0], [1], "num_positions"),
        ([1, 1], [1], "num_positions"),
        ([2], [1], "bits"),
        ([2], [1, 2, 3], "bits"),
    ):
        mask = step_pb2.GrammarMask(
            handles=uint64s(1), num_positions=uint32s(*positions), bits=uint32s(*bits)
        )
        request = worker_pb2.SampleTokensRequest(key=key, grammar_mask=mask)
        with pytest.raises(InvalidStep, match=rf"grammar_mask\.{field}"):
            stream_codec.decode_sample_tokens(request)


def test_broken_results():
    """Result columns that disagree are refused by field."""
    output = step_pb2.ModelRunnerOutput(
        key=a_key(),
        handles=uint64s(1),
        sampled_token_ids=step_pb2.RaggedColumn(values=uint32s(5), offsets=uint32s(0, 1)),
        logprobs=step_pb2.Logprobs(
            num_alternatives=1, token_ids=uint32s(5, 6), logprobs=uint32s(0, 0), ranks=uint32s(1)
        ),
    )
    result_codec.decode_model_runner_output(output)
    for field, broken in {
        "logprobs.token_ids": step_pb2.Logprobs(num_alternatives=2),
        "logprobs.ranks": step_pb2.Logprobs(token_ids=uint32s(5), logprobs=uint32s(0)),
    }.items():
        output.logprobs.CopyFrom(broken)
        with pytest.raises(InvalidStep, match=field):
            result_codec.decode_model_runner_output(output)
    output.logprobs.CopyFrom(
        step_pb2.Logprobs(token_ids=uint32s(5), logprobs=uint32s(0), ranks=uint32s(1))
    )
    output.prompt_logprobs.add(logprobs=step_pb2.Logprobs(ranks=uint32s(1)))
    with pytest.raises(InvalidStep, match=r"prompt_logprobs\.logprobs\.token_ids"):
        result_codec.decode_model_runner_output(output)
    output.ClearField("prompt_logprobs")
    output.handles = uint64s(1, 2)
    with pytest.raises(InvalidStep, match="sampled_token_ids"):
        result_codec.decode_model_runner_output(output)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [-1]},
        {"shape": [2]},
        {"num_bytes": 8},
        {"shape": [1] * 9},
        {"shape": [2**40], "num_bytes": 2**42},
        {"shape": [2**62, 2**62], "num_bytes": 2**63},
    ],
)
def test_impossible_descriptors(change):
    """Shapes and sizes that cannot be are refused before anything of that size is made."""
    good = {"name": "h", "dtype": tensor_pb2.ELEMENT_TYPE_FLOAT32, "shape": [1], "num_bytes": 4}
    tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(**good))
    with pytest.raises(TensorError, match="'h'"):
        tensor_codec.decode_descriptor(tensor_pb2.TensorDescriptor(**{**good, **change}))


def test_inline_bytes_are_verified():
    """Inline tensors with missing, short or altered bytes, or one name twice, are refused."""
    tensor = wire_tensor(name="h", dtype=DType.UINT8, shape=(4,), buffer=memoryview(b"abcd"))
    spelled = result_codec.encode_intermediate_tensors(
        IntermediateTensors(
            key=step_codec.decode_step_key(a_key()),
            descriptors=(tensor.descriptor,),
            inline=(tensor,),
        )
    )
    for payload, cause in (([], "0 payloads"), ([b"abc"], "3 bytes"), ([b"abce"], "damaged")):
        spelled.inline.tensors[:] = payload
        with pytest.raises(TensorError, match=cause):
            result_codec.decode_intermediate_tensors(spelled)
    spelled.inline.tensors[:] = [b"abcd", b"abcd"]
    spelled.descriptors.append(spelled.descriptors[0])
    with pytest.raises(TensorError, match="repeat"):
        result_codec.decode_intermediate_tensors(spelled)


@unhurried
@given(st.binary(max_size=60))
def test_any_channel_header(part):
    """Whatever bytes come, a header is read or refused with TensorError."""
    try:
        header = decode_channel_header(part)
    except TensorError:
        return
    assert decode_channel_header(encode_channel_header(header)) == header


def test_header_of_two_generations():
    """A header whose key is of another generation than the header is refused."""
    header = channel_pb2.ChannelHeader(
        epoch=1, generation=2, tensors=channel_pb2.ChannelTensors(key=a_key())
    )
    with pytest.raises(TensorError, match="another generation"):
        decode_channel_header(header.SerializeToString())
