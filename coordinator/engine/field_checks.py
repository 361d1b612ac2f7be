"""Checks of values that several fields of a request have in common."""

from collections.abc import Sequence

from common.errors import InvalidRequest
from coordinator.engine.generation import ServedModel


def check_characters(field: str, text: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell and no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{field}: position {error.start} holds half of a surrogate pair, which is no character",
            param=field,
        ) from error


def check_vocabulary(field: str, token_ids: Sequence[int], *, model: ServedModel) -> None:
    """Refuse a token id that the model does not know."""
    for token_id in token_ids:
        if not 0 <= token_id < model.vocab_size:
            raise InvalidRequest(
                f"{field}: token id {token_id} is outside the vocabulary, 0 to {model.vocab_size - 1}",
                param=field,
            )
