"""What the engine gives back -> answers of `vllm.grpc.engine.VllmEngine`.

A stream brings the new tokens of an output in chunks and, once it has ended, a completion that
repeats the last of them; otherwise the completion brings all. Counts of tokens are those of the
tokens beside them. Text is the gateway's to make, so none is sent.
"""

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from common.requests import FinishReason
from coordinator.engine.generation import PositionLogprobs, TextDelta


def encode_chunk(delta: TextDelta) -> pb.GenerateResponse:
    """The new tokens of one output."""
    chunk = pb.GenerateStreamChunk(
        index=delta.index,
        token_ids=delta.token_ids,
        prompt_tokens=delta.num_prompt_tokens,
        completion_tokens=len(delta.token_ids),
        cached_tokens=delta.num_cached_tokens,
        output_logprobs=_logprobs([delta]),
        input_logprobs=_input_logprobs([delta]),
    )
    return pb.GenerateResponse(chunk=chunk)


def encode_complete(
    deltas: Sequence[TextDelta], *, stop_token_ids: frozenset[int]
) -> pb.GenerateResponse:
    """The end of one output, with the tokens of these deltas; the last one has ended it."""
    last = deltas[-1]
    assert last.finish_reason is not None, "an output is complete once it has ended"
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    complete = pb.GenerateComplete(
        index=last.index,
        output_ids=token_ids,
        finish_reason=last.finish_reason.value,
        prompt_tokens=last.num_prompt_tokens,
        completion_tokens=len(token_ids),
        cached_tokens=last.num_cached_tokens,
        output_logprobs=_logprobs(deltas),
        input_logprobs=_input_logprobs(deltas),
    )
    if last.finish_reason is FinishReason.STOP:
        _note_stop(complete, last, stop_token_ids)
    return pb.GenerateResponse(complete=complete)


def _note_stop(
    complete: pb.GenerateComplete, last: TextDelta, stop_token_ids: frozenset[int]
) -> None:
    """Name the stop string or the stop token; the model's own end of sequence is neither."""
    if last.stop_string is not None:
        complete.matched_stop_str = last.stop_string
    elif last.token_ids and last.token_ids[-1] in stop_token_ids:
        complete.matched_token_id = last.token_ids[-1]


def _logprobs(deltas: Sequence[TextDelta]) -> pb.OutputLogProbs | None:
    """Parallel arrays, one entry per token; None when no log-probabilities were asked for."""
    positions = [position for delta in deltas for position in delta.logprobs or ()]
    if not positions:
        return None
    return pb.OutputLogProbs(
        token_ids=[position.chosen.token_id for position in positions],
        token_logprobs=[position.chosen.logprob for position in positions],
        top_logprobs=[_top(position) for position in positions],
    )


def _input_logprobs(deltas: Sequence[TextDelta]) -> pb.InputLogProbs | None:
    """Parallel arrays, one entry per token of the prompt, whose first has no log-probability."""
    prompt = deltas[0].prompt
    if prompt is None or prompt.logprobs is None:
        return None
    positions = prompt.logprobs
    token_ids = [position.chosen.token_id for position in positions]
    values = [pb.InputTokenLogProb(value=position.chosen.logprob) for position in positions]
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(), *values],
        token_ids=[prompt.first_token.token_id, *token_ids],
        top_logprobs=[pb.TopLogProbs(), *map(_top, positions)],
    )


def _top(position: PositionLogprobs) -> pb.TopLogProbs:
    return pb.TopLogProbs(
        token_ids=[token.token_id for token in position.top],
        values=[token.logprob for token in position.top],
    )
