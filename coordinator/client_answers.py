"""Responses of gRPC `Generate` -> deltas of outputs, and those of a whole answer joined to one."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepwire.v1 import inference_pb2 as pb

from common.requests import FinishReason
from coordinator.engine.generation import PositionLogprobs, PromptText, TextDelta, TokenLogprob

FINISH_REASONS: dict[int, FinishReason | None] = {
    pb.FINISH_REASON_UNSPECIFIED: None,
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_ABORT: FinishReason.ABORT,
}


class Answers:
    """Decodes the responses of one request by output."""

    def __init__(self) -> None:
        """Begin before the first response."""
        self._by_index: defaultdict[int, _Answer] = defaultdict(_Answer)

    def decode(self, response: pb.GenerateResponse) -> TextDelta:
        """The next delta of whichever output it belongs to."""
        return self._by_index[response.index].decode(response)


class _Answer:
    """Decodes the responses of one output, counting what came before each."""

    def __init__(self) -> None:
        self._num_generated_tokens = 0
        self._num_characters = 0

    def decode(self, response: pb.GenerateResponse) -> TextDelta:
        """The next delta."""
        delta = TextDelta(
            text=response.text,
            token_ids=tuple(response.token_ids),
            num_prompt_tokens=response.usage.prompt_tokens,
            num_cached_tokens=response.usage.cached_tokens,
            num_generated_tokens=self._num_generated_tokens + len(response.token_ids),
            logprobs=_positions(response.logprobs, text_offset=self._num_characters),
            finish_reason=FINISH_REASONS.get(response.finish_reason),
            index=response.index,
            prompt=_decode_prompt(response),
        )
        self._num_generated_tokens += len(delta.token_ids)
        self._num_characters += len(delta.text)
        return delta


def _positions(
    positions: Iterable[pb.PositionLogprobs], *, text_offset: int
) -> tuple[PositionLogprobs, ...] | None:
    decoded = tuple(
        PositionLogprobs(
            chosen=_decode_token(position.chosen),
            rank=position.rank,
            top=tuple(_decode_token(token) for token in position.top),
            text_offset=text_offset,
        )
        for position in positions
    )
    return decoded or None


def _decode_prompt(response: pb.GenerateResponse) -> PromptText | None:
    if not response.HasField("first_prompt_token"):
        return None
    return PromptText(
        text=response.prompt_text,
        first_token=_decode_token(response.first_prompt_token),
        logprobs=_positions(response.prompt_logprobs, text_offset=0),
    )


def _decode_token(token: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        token_id=token.token_id, token_bytes=token.token.encode(), logprob=token.logprob
    )


def join_each(deltas: Sequence[TextDelta]) -> tuple[TextDelta, ...]:
    """One delta for each output, that stands for its whole answer."""
    by_index: defaultdict[int, list[TextDelta]] = defaultdict(list)
    for delta in deltas:
        by_index[delta.index].append(delta)
    return tuple(_join(by_index[index]) for index in sorted(by_index))


def _join(deltas: Sequence[TextDelta]) -> TextDelta:
    """One delta that stands for a finished answer."""
    last = deltas[-1]
    positions = tuple(position for delta in deltas for position in delta.logprobs or ())
    return replace(
        last,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=positions or None,
        prompt=next((delta.prompt for delta in deltas if delta.prompt), None),
    )
