"""Checks of a request before its prompts are tokenized.

Everything a worker could choke on is refused here, naming the field and its limit, before any
worker sees the request.
"""

from typing import cast

from common.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from coordinator.engine.constraint_checks import check_constraint
from coordinator.engine.edit_checks import check_edits
from coordinator.engine.field_checks import check_characters, check_vocabulary
from coordinator.engine.generation import ChatTurn, GenerationInput, Prompt, ServedModel
from coordinator.engine.limits import (
    MAX_MESSAGES,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    ROLES,
    check_count,
    check_length,
    check_range,
    quoted,
)

RANGED_FIELDS = (
    "n",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "priority",
)


def check_input(asked: GenerationInput, *, model: ServedModel) -> None:
    """Check everything that can be checked before the prompts are tokenized.

    Raises ModelNotFound for another model, InvalidRequest naming field and limit otherwise.
    """
    if asked.model not in ("", model.name):
        raise ModelNotFound(f"there is no model {quoted(asked.model)}; {model.name!r} is served")
    check_request_id(asked.request_id)
    for field in RANGED_FIELDS:
        if not (field == "max_tokens" and asked.max_tokens == 0 and asked.echo):
            check_range(field, getattr(asked, field))
    check_edits(asked, model=model)
    check_constraint(asked.constraint)
    _check_stop(asked.stop)
    num_stop_ids = len(asked.stop_token_ids)
    check_count("stop_token_ids", num_stop_ids, most=MAX_STOP_TOKEN_IDS, things="ids")
    check_vocabulary("stop_token_ids", asked.stop_token_ids, model=model)
    if not asked.prompts:
        raise InvalidRequest("prompt is empty, at least one is needed", param="prompt")
    if asked.num_sequences > model.max_sequences:
        raise InvalidRequest(
            f"prompt: {len(asked.prompts)} prompts with n = {asked.num_choices} ask for "
            f"{asked.num_sequences} outputs, at most {model.max_sequences} a request are allowed",
            param="prompt",
        )
    for prompt in asked.prompts:
        _check_prompt(prompt, model=model)


def check_request_id(request_id: str) -> None:
    """Refuse an id that is too long, or that a header or a log line could not carry."""
    check_length("request_id", request_id, most=MAX_REQUEST_ID_CHARACTERS)
    if not all("!" <= character <= "~" for character in request_id):
        raise InvalidRequest(
            f"request_id must be visible ASCII characters without spaces, not {request_id!a}",
            param="request_id",
        )


def check_text_length(prompt: Prompt, *, max_token_characters: int, model: ServedModel) -> None:
    """Refuse a text that cannot fit, however it is tokenized: tokenizing it would take seconds.

    Raises ContextLengthExceeded. max_token_characters: of a text, at most, in one token.
    """
    parts = (prompt,) if isinstance(prompt, str) else prompt
    texts = [part.content if isinstance(part, ChatTurn) else part for part in parts]
    num_characters = sum(len(text) for text in texts if isinstance(text, str))
    if num_characters > model.max_model_len * max_token_characters:
        field = field_of(prompt)
        raise ContextLengthExceeded(
            f"{field} has {num_characters} characters, which are more than the "
            f"{model.max_model_len - 1} tokens that the model takes at most",
            param=field,
        )


def check_room(field: str, num_tokens: int, *, model: ServedModel) -> None:
    """Refuse a prompt without tokens, and one that leaves no room for output."""
    if not num_tokens:
        raise InvalidRequest(f"{field} has no tokens, at least 1 is needed", param=field)
    if num_tokens >= model.max_model_len:
        raise ContextLengthExceeded(
            f"{field} has {num_tokens} tokens; the model takes at most {model.max_model_len - 1},"
            f" so that one of its {model.max_model_len} is left for the output",
            param=field,
        )


def field_of(prompt: Prompt) -> str:
    """The field a client knows the prompt by."""
    return "messages" if prompt and isinstance(prompt[0], ChatTurn) else "prompt"


def _check_prompt(prompt: Prompt, *, model: ServedModel) -> None:
    if not prompt:
        raise InvalidRequest("prompt is empty, at least one token is needed", param="prompt")
    if isinstance(prompt, str):
        check_characters("prompt", prompt)
        return
    turns = [part for part in prompt if isinstance(part, ChatTurn)]
    if not turns:
        check_room("prompt", len(prompt), model=model)
        check_vocabulary("prompt", cast("tuple[int, ...]", prompt), model=model)
    check_count("messages", len(turns), most=MAX_MESSAGES, things="messages")
    for turn in turns:
        _check_turn(turn)


def _check_turn(turn: ChatTurn) -> None:
    if turn.role not in ROLES:
        raise InvalidRequest(
            f"messages: role must be one of {', '.join(ROLES)}, not {quoted(turn.role)}",
            param="messages",
        )
    check_characters("messages", turn.content)


def _check_stop(stop: tuple[str, ...]) -> None:
    check_count("stop", len(stop), most=MAX_STOP_STRINGS, things="strings")
    for text in stop:
        if not text:
            raise InvalidRequest("stop holds an empty string, which is everywhere", param="stop")
        check_length("stop", text, most=MAX_STOP_CHARACTERS)
        check_characters("stop", text)
