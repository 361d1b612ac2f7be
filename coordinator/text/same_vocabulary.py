"""Whether two models speak the same tokens, as one that drafts for the other has to."""

from tokenizers import Tokenizer as TokenizerFile

from common.errors import ConfigError, ModelError
from common.model_folder import ModelFolder


def check_same_vocabulary(model: ModelFolder, draft: ModelFolder) -> None:
    """Raise ConfigError, naming the first difference, unless every token id means the same to both.

    Reads both tokenizers, which blocks; a draft model without one is judged by its size alone.
    """
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"--draft-model {draft.name} has a vocabulary of {draft.vocab_size} tokens and "
            f"{model.name} one of {model.vocab_size}: give a draft model with the same tokenizer"
        )
    path = draft.path / "tokenizer.json"
    if draft.path == model.path or not path.is_file():
        return
    ours, theirs = _tokens(model), _tokens(draft)
    for token in sorted(ours.keys() | theirs.keys(), key=lambda token: ours.get(token, -1)):
        if ours.get(token) != theirs.get(token):
            raise ConfigError(
                f"--draft-model {draft.name} has another vocabulary than {model.name}: token "
                f"{token!r} has id {_name(theirs.get(token))} there and {_name(ours.get(token))} "
                f"here: give a draft model with the same tokenizer"
            )


def _tokens(folder: ModelFolder) -> dict[str, int]:
    path = folder.path / "tokenizer.json"
    try:
        return TokenizerFile.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises nothing more exact
        raise ModelError(f"{path} cannot be read: {error}") from error


def _name(token_id: int | None) -> str:
    return "none" if token_id is None else str(token_id)
