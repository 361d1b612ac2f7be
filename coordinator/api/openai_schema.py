"""OpenAI request bodies -> what the engine is asked; ranges are the engine's to check."""

import json
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from common.errors import InvalidRequest
from coordinator.api.constraint_fields import GUIDED_FIELDS, constraint_of
from coordinator.engine.generation import ChatTurn, GenerationInput, Prompt
from coordinator.engine.limits import MAX_LOGIT_BIAS, check_count, check_range

Item = TypeVar("Item")

# Without it every wrong item has a complaint of its own: megabytes of them cost gigabytes.
_List = Annotated[list[Item], Field(fail_fast=True)]


class _Part(BaseModel):
    """A part of a body: types are not converted, fields without a model are kept aside."""

    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Part):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None


class GenerationBody(_Part):
    """What both endpoints share; None is the same as leaving a field out."""

    model: str = ""
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | _List[str] | None = None
    stop_token_ids: _List[int] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: _List[int] | None = None
    bad_words: _List[str] | None = None
    prompt_logprobs: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def fields_without_model(self) -> dict[str, Any]:
        """Names and values that stand in the body beside the fields declared here."""
        return dict(self.model_extra or {})

    def shared_options(self) -> dict[str, Any]:
        """The fields of GenerationInput both endpoints fill alike."""
        if self.stream_options is not None and not self.is_streamed:
            raise InvalidRequest("stream_options goes with stream: true", param="stream_options")
        return {
            "model": self.model,
            "n": self.n,
            "max_tokens": self._most_tokens(),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "ignore_eos": bool(self.ignore_eos),
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "min_tokens": self.min_tokens,
            "logit_bias": _logit_bias(self.logit_bias or {}),
            "allowed_token_ids": (
                None if self.allowed_token_ids is None else tuple(self.allowed_token_ids)
            ),
            "bad_words": tuple(self.bad_words or ()),
            "prompt_logprobs": self.prompt_logprobs,
            "constraint": constraint_of(
                response_format=self.response_format,
                structured_outputs=self.structured_outputs,
                guided={field: getattr(self, field) for field in GUIDED_FIELDS},
            ),
            "extra_args": tuple(
                (name, json.dumps(value)) for name, value in (self.vllm_xargs or {}).items()
            ),
            "skip_special_tokens": self.skip_special_tokens is not False,
            "priority": self.priority,
        }

    def _most_tokens(self) -> int | None:
        # Checked here too, since the engine would name the older field.
        check_range("max_completion_tokens", self.max_completion_tokens)
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    prompt: str | _List[int] | _List[str] | _List[_List[int]]
    logprobs: int | None = None
    echo: bool | None = None

    def to_input(self, request_id: str) -> GenerationInput:
        """The engine's input; raises InvalidRequest where fields contradict each other."""
        return GenerationInput(
            request_id=request_id,
            prompts=_prompts(self.prompt),
            logprobs=self.logprobs,
            echo=bool(self.echo),
            **self.shared_options(),
        )


class ContentPart(_Part):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(_Part):
    """A message of a conversation."""

    role: str
    content: str | _List[ContentPart]

    def to_turn(self) -> ChatTurn:
        """The engine's turn: parts are joined by newlines, "developer" is "system" by a newer name."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return ChatTurn(role=role, content=self.content)
        return ChatTurn(role=role, content="\n".join(part.text for part in self.content))


class ChatBody(GenerationBody):
    """Body of POST /v1/chat/completions."""

    messages: _List[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def to_input(self, request_id: str) -> GenerationInput:
        """The engine's input; raises InvalidRequest where fields contradict each other."""
        if not self.messages:
            raise InvalidRequest("messages is empty, at least one is needed", param="messages")
        return GenerationInput(
            request_id=request_id,
            prompts=(tuple(message.to_turn() for message in self.messages),),
            logprobs=self._num_logprobs(),
            **self.shared_options(),
        )

    def fields_without_model(self) -> dict[str, Any]:
        """Those of the messages as well: a call of a tool stands there."""
        fields = super().fields_without_model()
        for message in self.messages:
            fields |= message.model_extra or {}
        return fields

    def _num_logprobs(self) -> int | None:
        check_range("top_logprobs", self.top_logprobs)
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise InvalidRequest("top_logprobs goes with logprobs: true", param="top_logprobs")
        return None


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON spells the ids as names of an object's fields."""
    check_count("logit_bias", len(biases), most=MAX_LOGIT_BIAS, things="entries")
    try:
        return tuple((int(token_id), bias) for token_id, bias in biases.items())
    except ValueError as error:
        raise InvalidRequest(
            'logit_bias: the names must be token ids, such as {"1024": -100}',
            param="logit_bias",
        ) from error


def _prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> tuple[Prompt, ...]:
    """One prompt or several: a text or token ids, or a list of those."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt or isinstance(prompt[0], int):
        return (tuple(cast("list[int]", prompt)),)
    several = cast("list[str] | list[list[int]]", prompt)
    return tuple(part if isinstance(part, str) else tuple(part) for part in several)
