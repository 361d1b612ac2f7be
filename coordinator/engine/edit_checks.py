"""Checks of what a request asks of its logits: biases, allowed tokens, bad words, extra arguments."""

from common.errors import InvalidRequest
from coordinator.engine.field_checks import check_characters, check_vocabulary
from coordinator.engine.generation import GenerationInput, ServedModel
from coordinator.engine.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_EXTRA_ARG_CHARACTERS,
    MAX_EXTRA_ARGS,
    MAX_LOGIT_BIAS,
    check_count,
    check_length,
    check_range,
    quoted,
)


def check_edits(asked: GenerationInput, *, model: ServedModel) -> None:
    """Raise InvalidRequest naming field and limit."""
    _check_bias(asked.logit_bias, model=model)
    _check_allowed(asked.allowed_token_ids, model=model)
    _check_bad_words(asked.bad_words)
    _check_extra_args(asked.extra_args, model=model)
    if asked.min_tokens and asked.max_tokens and asked.min_tokens > asked.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {asked.min_tokens}, more than max_tokens, {asked.max_tokens}",
            param="min_tokens",
        )


def _check_bias(logit_bias: tuple[tuple[int, float], ...], *, model: ServedModel) -> None:
    check_count("logit_bias", len(logit_bias), most=MAX_LOGIT_BIAS, things="entries")
    token_ids = [token_id for token_id, _ in logit_bias]
    check_vocabulary("logit_bias", token_ids, model=model)
    if len(set(token_ids)) < len(token_ids):
        raise InvalidRequest("logit_bias names a token twice", param="logit_bias")
    for _, bias in logit_bias:
        check_range("logit_bias", bias)


def _check_allowed(token_ids: tuple[int, ...] | None, *, model: ServedModel) -> None:
    if token_ids is None:
        return
    if not token_ids:
        raise InvalidRequest(
            "allowed_token_ids is empty, which allows nothing: leave it out",
            param="allowed_token_ids",
        )
    check_count("allowed_token_ids", len(token_ids), most=MAX_ALLOWED_TOKEN_IDS, things="ids")
    check_vocabulary("allowed_token_ids", token_ids, model=model)


def _check_bad_words(words: tuple[str, ...]) -> None:
    check_count("bad_words", len(words), most=MAX_BAD_WORDS, things="texts")
    for word in words:
        if not word:
            raise InvalidRequest("bad_words holds an empty text", param="bad_words")
        check_length("bad_words", word, most=MAX_BAD_WORD_CHARACTERS)
        check_characters("bad_words", word)


def _check_extra_args(extra_args: tuple[tuple[str, str], ...], *, model: ServedModel) -> None:
    check_count("vllm_xargs", len(extra_args), most=MAX_EXTRA_ARGS, things="arguments")
    for name, argument in extra_args:
        if name not in model.logits_processors:
            known = ", ".join(sorted(model.logits_processors)) or "none"
            raise InvalidRequest(
                f"vllm_xargs: the workers have no logits processor {quoted(name)}, but {known}",
                param="vllm_xargs",
            )
        check_length("vllm_xargs", argument, most=MAX_EXTRA_ARG_CHARACTERS)
