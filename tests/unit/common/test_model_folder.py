"""A model folder is found by name and read without torch."""

import json
from pathlib import Path

import pytest

from common.errors import ModelError
from common.model_folder import (
    BUNDLED_MODELS,
    bundled_folder,
    is_imported,
    read_model_folder,
    resolve_model,
)

CONFIG = {"vocab_size": 260, "num_hidden_layers": 6, "max_position_embeddings": 2048}


def write_folder(folder: Path, **files: object) -> Path:
    """Write `name="..."` texts and `name={...}` objects as files; __ stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config__json": CONFIG, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_reads_what_the_small_files_say(tmp_path: Path):
    """Sizes come from config.json, ends from generation_config.json, tokens from the tokenizer's."""
    folder = write_folder(
        tmp_path / "tiny",
        config__json={**CONFIG, "dtype": "bfloat16", "eos_token_id": 1},
        generation_config__json={"eos_token_id": [2, 3]},
        tokenizer_config__json={"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
        chat_template__jinja="{{ messages }}",
    )
    model = read_model_folder(folder)
    assert (model.name, model.vocab_size, model.num_layers) == ("tiny", 260, 6)
    assert model.max_position_embeddings == 2048
    assert model.eos_token_ids == {2, 3}
    assert (model.bos_token, model.eos_token) == ("<s>", "</s>")
    assert model.chat_template == "{{ messages }}"
    assert model.dtype == "bfloat16"


def test_config_alone_is_enough(tmp_path: Path):
    """Without the optional files the end comes from config.json and the rest is absent."""
    folder = write_folder(tmp_path, config__json={**CONFIG, "eos_token_id": 7})
    model = read_model_folder(folder)
    assert model.eos_token_ids == {7}
    assert (model.chat_template, model.bos_token, model.eos_token) == (None, None, None)
    assert model.dtype == "float32"


@pytest.mark.parametrize(
    "template",
    ["hello", [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "hello"}]],
)
def test_template_in_the_tokenizer_config(tmp_path: Path, template: object):
    """A template is taken from the tokenizer config, of several the one named default."""
    folder = write_folder(tmp_path, tokenizer_config__json={"chat_template": template})
    assert read_model_folder(folder).chat_template == "hello"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"vocab_size": 260, "num_hidden_layers": 6}, "max_position_embeddings"),
        ({**CONFIG, "vocab_size": 0}, "vocab_size"),
        ("{", "config.json"),
        ("[]", "config.json"),
    ],
)
def test_wrong_config_is_named(tmp_path: Path, content: object, named: str):
    """What config.json lacks is named in the error."""
    with pytest.raises(ModelError, match=named):
        read_model_folder(write_folder(tmp_path, config__json=content))


def test_folder_without_config_is_refused(tmp_path: Path):
    """A folder that holds no config.json is no model."""
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_folder(tmp_path)


def test_bundled_name_resolves_once_imported(tmp_path: Path):
    """A bundled name is refused with the command to run, and resolves when its folder is whole."""
    name = BUNDLED_MODELS[0]
    with pytest.raises(ModelError, match=f"stepwire model import {name}"):
        resolve_model(name, cache=tmp_path)
    folder = write_folder(bundled_folder(name, cache=tmp_path))
    assert is_imported(folder)
    assert resolve_model(name, cache=tmp_path) == folder


def test_dtypes_have_folders_of_their_own(tmp_path: Path):
    """The float32 import does not overwrite the default one."""
    name = BUNDLED_MODELS[0]
    assert bundled_folder(name, cache=tmp_path) != bundled_folder(
        name, cache=tmp_path, dtype="float32"
    )


def test_folder_resolves_to_itself(tmp_path: Path):
    """An existing folder is the model."""
    assert resolve_model(str(tmp_path), cache=tmp_path / "cache") == tmp_path.resolve()


@pytest.mark.parametrize("model", ["smolm2", "./missing/folder", "/missing", "a/b/c", "a" * 300])
def test_unknown_model_is_one_line(tmp_path: Path, model: str):
    """A name that means nothing is refused in one line, without asking the hub."""
    with pytest.raises(ModelError, match="bundled name") as refused:
        resolve_model(model, cache=tmp_path)
    assert "\n" not in str(refused.value)


def test_hub_download_is_named_by_its_id(tmp_path: Path):
    """The folder of a hub download is a commit hash, so its name is the hub id."""
    folder = write_folder(tmp_path / "models--owner--tiny" / "snapshots" / "0f3a")
    assert read_model_folder(folder).name == "owner/tiny"
