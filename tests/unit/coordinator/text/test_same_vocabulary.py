"""A draft model has to speak the target's tokens, and the first that differs is named."""

import json
from pathlib import Path

import pytest

from common.errors import ConfigError, ModelError
from common.model_folder import ModelFolder, read_model_folder
from coordinator.text.same_vocabulary import check_same_vocabulary
from tests.fakes.byte_tokenizer import write_byte_tokenizer


def write_folder(path: Path, *, vocab_size: int = 260, has_tokenizer: bool = True) -> ModelFolder:
    """A model folder without weights."""
    path.mkdir()
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": 1, "max_position_embeddings": 64}
    (path / "config.json").write_text(json.dumps(sizes))
    if has_tokenizer:
        write_byte_tokenizer(path)
    return read_model_folder(path)


def test_the_same_tokenizer_in_another_folder_is_right(tmp_path):
    """Two files that say the same are the same vocabulary."""
    check_same_vocabulary(write_folder(tmp_path / "model"), write_folder(tmp_path / "draft"))


def test_another_size_is_refused(tmp_path):
    """The message says both sizes and what to do."""
    draft = write_folder(tmp_path / "draft", vocab_size=300)
    with pytest.raises(
        ConfigError, match=r"draft has a vocabulary of 300 tokens and model one of 260"
    ):
        check_same_vocabulary(write_folder(tmp_path / "model"), draft)


def test_another_meaning_of_an_id_is_refused(tmp_path):
    """As many tokens, two of which have changed places."""
    model, draft = write_folder(tmp_path / "model"), write_folder(tmp_path / "draft")
    file = draft.path / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = sorted(vocabulary, key=lambda token: vocabulary[token])[65:67]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"has id 66 there and 65 here"):
        check_same_vocabulary(model, draft)


def test_a_draft_model_without_a_tokenizer_is_judged_by_its_size(tmp_path):
    """A folder of weights alone, cut out of the target's, needs no copy of the tokenizer."""
    draft = write_folder(tmp_path / "draft", has_tokenizer=False)
    check_same_vocabulary(write_folder(tmp_path / "model"), draft)


def test_an_unreadable_tokenizer_is_named(tmp_path):
    """What is no tokenizer is an error of the folder."""
    model, draft = write_folder(tmp_path / "model"), write_folder(tmp_path / "draft")
    (draft.path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"draft/tokenizer.json cannot be read"):
        check_same_vocabulary(model, draft)
