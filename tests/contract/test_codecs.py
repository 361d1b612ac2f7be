"""Steps, results and tensors survive protobuf, and bytes of the first contract still decode."""

from hypothesis import given
from hypothesis import strategies as st
from stepwire.v1 import step_pb2

from common.codecs import result_codec, step_codec, stream_codec
from common.codecs.channel_codec import (
    HelloHeader,
    TensorsHeader,
    decode_channel_header,
    encode_channel_header,
)
from common.errors import WrongOrder
from common.step import (
    ExecutePending,
    Phase,
    SchedulerOutput,
    StepId,
    StepKey,
)
from common.worker_api import (
    ExecuteModel,
)
from tests.fakes.wire_messages import a_step
from tests.fakes.wire_values import (
    grammar_masks,
    intermediate_tensors,
    keys,
    model_runner_outputs,
    names,
    ranks,
    same,
    scheduler_outputs,
    step_ids,
    unhurried,
    wire_tensors,
)


@unhurried
@given(scheduler_outputs())
def test_scheduler_output(output):
    """A step survives, through bytes, with every column's dtype."""
    spelled = step_codec.encode_scheduler_output(output).SerializeToString()
    decoded = step_codec.decode_scheduler_output(step_pb2.SchedulerOutput.FromString(spelled))
    assert same(output, decoded)


@unhurried
@given(model_runner_outputs())
def test_model_runner_output(output):
    """What a step produced survives, through bytes."""
    spelled = result_codec.encode_model_runner_output(output).SerializeToString()
    decoded = result_codec.decode_model_runner_output(
        step_pb2.ModelRunnerOutput.FromString(spelled)
    )
    assert same(output, decoded)


@unhurried
@given(intermediate_tensors())
def test_intermediate_tensors(tensors):
    """What a stage hands on survives, inline and on the channel."""
    spelled = result_codec.encode_intermediate_tensors(tensors).SerializeToString()
    decoded = result_codec.decode_intermediate_tensors(
        step_pb2.IntermediateTensors.FromString(spelled)
    )
    assert same(tensors, decoded)


@unhurried
@given(scheduler_outputs(), st.none() | intermediate_tensors(), st.booleans())
def test_execute_model(output, tensors, inline_reply):
    """An execute call survives, with the previous stage's tensors if any."""
    request = ExecuteModel(
        scheduler_output=output, intermediate_tensors=tensors, inline_reply=inline_reply
    )
    spelled = stream_codec.encode_execute_model(request)
    assert same(stream_codec.decode_execute_model(spelled), request)


@unhurried
@given(step_ids, grammar_masks() | st.none())
def test_sample_tokens(step_id, mask):
    """A sample call survives, with a mask or without."""
    spelled = stream_codec.encode_sample_tokens(step_id, mask)
    decoded_id, decoded_mask = stream_codec.decode_sample_tokens(spelled)
    assert decoded_id == step_id
    assert (mask is None) == (decoded_mask is None)
    if mask is not None:
        assert same(decoded_mask, mask)


@unhurried
@given(
    intermediate_tensors()
    | model_runner_outputs(Phase.SAMPLE)
    | model_runner_outputs(Phase.EXECUTE)
    | st.builds(
        ExecutePending, key=st.builds(StepKey, step_id=step_ids, phase=st.just(Phase.EXECUTE))
    )
)
def test_stream_answer(result):
    """Every kind of answer on the step stream survives, with the key it answers."""
    answer = stream_codec.encode_stream_answer(result, result.key)
    assert same(stream_codec.decode_stream_answer(answer), (result.key, result))


@unhurried
@given(keys, names)
def test_stream_error(key, message):
    """A refusal on the step stream survives with its class, message and key."""
    answer = stream_codec.encode_stream_answer(WrongOrder(message), key)
    answered, error = stream_codec.decode_stream_answer(answer)
    assert (answered, type(error), str(error)) == (key, WrongOrder, message)


@unhurried
@given(ranks, keys, wire_tensors())
def test_channel_header(rank, key, tensors):
    """The header of a tensor message survives."""
    header = TensorsHeader(
        sender=rank, key=key, descriptors=tuple(tensor.descriptor for tensor in tensors)
    )
    assert decode_channel_header(encode_channel_header(header)) == header
    hello = HelloHeader(epoch=7, generation=8, sender=rank)
    assert decode_channel_header(encode_channel_header(hello)) == hello


def test_decoding_copies_nothing():
    """Columns are views of the message's bytes, in both directions of a step."""
    step = a_step()
    decoded = step_codec.decode_scheduler_output(step)
    columns = [
        decoded.cached_requests.handles,
        decoded.cached_requests.new_token_ids.values,
        decoded.num_scheduled_tokens,
        decoded.new_requests[0].token_ids,
    ]
    assert not any(each.flags.owndata or each.flags.writeable for each in columns)


def test_no_token_sources_cost_nothing():
    """A step whose tokens all come from the coordinator carries no source column."""
    step = step_codec.encode_scheduler_output(
        SchedulerOutput(step_id=StepId(epoch=1, generation=1, step=1), base_step=0)
    )
    assert step.cached_requests.token_source_steps == b""
    assert len(step_codec.decode_scheduler_output(step).cached_requests.token_source_steps) == 0


def test_golden_bytes():
    """Bytes written by contract version 1 decode to the same step as ever."""
    assert a_step().SerializeToString(deterministic=True).hex() == GOLDEN_STEP
    decoded = step_codec.decode_scheduler_output(
        step_pb2.SchedulerOutput.FromString(bytes.fromhex(GOLDEN_STEP))
    )
    assert decoded.step_id == StepId(epoch=1, generation=2, step=3)
    assert decoded.cached_requests.handles.tolist() == [11, 12]
    assert decoded.cached_requests.new_block_ids[0].row(1).tolist() == [9]
    assert decoded.new_requests[0].token_ids.tolist() == [1, 2, 3]
    assert decoded.new_requests[0].sampling.seed == 7


GOLDEN_STEP = (
    "08011002180320022a32080a120c0100000002000000030000001803220c0d0000803f1d0000803f28072a10"
    "0a040400000012080000000001000000325e0a100b000000000000000c000000000000001208050000000600"
    "00001a140a0409000000120c00000000000000000100000022180a080100000002000000120c000000000100"
    "0000020000002a10000000000000000002000000000000003a0c030000000100000001000000421001000000"
    "0000000002000000000000004a080300000000000000"
)
