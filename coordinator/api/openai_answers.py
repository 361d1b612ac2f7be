"""What the engine gives back -> OpenAI answers, whole and in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from common.requests import FinishReason
from coordinator.api.logprob_answers import (
    legacy_logprobs,
    output_positions,
    prompt_logprobs_body,
)
from coordinator.api.token_usage import TokenUsage
from coordinator.engine.generation import PromptText, TextDelta, TokenLogprob

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every chunk of an answer repeats; created is Unix seconds, num_outputs counts choices."""

    id: str
    model: str
    created: int
    num_outputs: int = 1


class AnswerFormat(Protocol):
    """How one endpoint spells an answer."""

    head: AnswerHead

    def opening(self) -> list[Body]:
        """Chunks before the first delta."""
        ...

    def chunk(self, delta: TextDelta) -> Body:
        """The chunk of one delta."""
        ...

    def usage_chunk(self, usage: TokenUsage) -> Body:
        """The chunk that ends a stream whose client wants counts."""
        ...

    def whole(self, deltas: Sequence[TextDelta], usage: TokenUsage) -> Body:
        """The answer in one piece; deltas holds the last one of every output."""
        ...


class CompletionFormat:
    """Answers of /v1/completions."""

    def __init__(self, head: AnswerHead) -> None:
        """Repeat the head in every body."""
        self.head = head

    def opening(self) -> list[Body]:
        """Nothing: a text begins with itself."""
        return []

    def chunk(self, delta: TextDelta) -> Body:
        """New text and its log-probabilities."""
        return self._body(self._choice([delta]))

    def usage_chunk(self, usage: TokenUsage) -> Body:
        """Counts, and no choice."""
        return self._body() | {"usage": _usage_body(usage)}

    def whole(self, deltas: Sequence[TextDelta], usage: TokenUsage) -> Body:
        """The whole texts with counts."""
        choices = [self._choice(own) for own in _by_output(deltas)]
        return self._body(*choices) | {"usage": _usage_body(usage)}

    def _body(self, *choices: Body) -> Body:
        return _head_body(self.head, "text_completion") | {"choices": list(choices)}

    def _choice(self, deltas: Sequence[TextDelta]) -> Body:
        echo = _echoed(deltas)
        text = "".join(delta.text for delta in deltas)
        choice = {
            "index": deltas[-1].index,
            "text": text if echo is None else echo.text + text,
            "logprobs": legacy_logprobs(deltas, echo),
            "finish_reason": _finish_reason(deltas[-1]),
        }
        return choice | prompt_logprobs_body(deltas)


class ChatFormat:
    """Answers of /v1/chat/completions."""

    def __init__(self, head: AnswerHead) -> None:
        """Repeat the head in every body."""
        self.head = head

    def opening(self) -> list[Body]:
        """The chunks that name the speaker of each choice."""
        role = {"role": "assistant", "content": ""}
        return [self._chunk(role, index) for index in range(self.head.num_outputs)]

    def chunk(self, delta: TextDelta) -> Body:
        """New text and its log-probabilities."""
        body = self._chunk({"content": delta.text} if delta.text else {}, delta.index)
        choice = body["choices"][0]
        choice["logprobs"] = _chat_logprobs([delta])
        choice["finish_reason"] = _finish_reason(delta)
        return body

    def usage_chunk(self, usage: TokenUsage) -> Body:
        """Counts, and no choice."""
        head = _head_body(self.head, "chat.completion.chunk")
        return head | {"choices": [], "usage": _usage_body(usage)}

    def whole(self, deltas: Sequence[TextDelta], usage: TokenUsage) -> Body:
        """The whole messages with counts."""
        choices = [self._choice(own) for own in _by_output(deltas)]
        head = _head_body(self.head, "chat.completion")
        body = head | {"choices": choices, "usage": _usage_body(usage)}
        return body | prompt_logprobs_body(deltas)

    def _choice(self, deltas: Sequence[TextDelta]) -> Body:
        text = "".join(delta.text for delta in deltas)
        return {
            "index": deltas[-1].index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": _chat_logprobs(deltas),
            "finish_reason": _finish_reason(deltas[-1]),
        }

    def _chunk(self, delta: Body, index: int) -> Body:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return _head_body(self.head, "chat.completion.chunk") | {"choices": [choice]}


def _echoed(deltas: Sequence[TextDelta]) -> PromptText | None:
    """The prompt, where its text is part of the answer."""
    prompt = deltas[0].prompt
    return prompt if prompt is not None and prompt.text else None


def _by_output(deltas: Sequence[TextDelta]) -> list[list[TextDelta]]:
    """The deltas of each output, in the order of the outputs."""
    by_index: dict[int, list[TextDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [by_index[index] for index in sorted(by_index)]


def _usage_body(usage: TokenUsage) -> Body:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _head_body(head: AnswerHead, kind: str) -> Body:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model}


def _finish_reason(delta: TextDelta) -> str | None:
    reason: FinishReason | None = delta.finish_reason
    return None if reason is None else reason.value


def _chat_logprobs(deltas: Sequence[TextDelta]) -> Body | None:
    positions = output_positions(deltas)
    if positions is None:
        return None
    content = [
        _chat_token(position.chosen)
        | {"top_logprobs": [_chat_token(token) for token in position.top]}
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: TokenLogprob) -> Body:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.token_bytes)}
