"""A model as a folder in the Hugging Face layout: where it is, and what both services read of it.

Knows names, folders and small JSON files; never opens weights and needs neither torch nor
transformers.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from common.errors import ModelError, ModelMissing

BUNDLED_MODELS = ("smollm2-135m", "gemma3-270m")
"""Names that `stepwire model import` can fetch without an account."""

BUNDLED_DTYPES = ("bfloat16", "float32")
"""Types a bundled model can be imported in; the first is the default."""

FOLDER_NAME = re.compile(r"\w[\w.-]*")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What config.json, generation_config.json, tokenizer_config.json and chat_template.jinja say.

    max_position_embeddings counts tokens; dtype is the checkpoint's, e.g. "bfloat16".
    """

    path: Path
    name: str
    vocab_size: int
    num_layers: int
    max_position_embeddings: int
    eos_token_ids: frozenset[int]
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    dtype: str


def bundled_folder(name: str, *, cache: Path, dtype: str = BUNDLED_DTYPES[0]) -> Path:
    """The folder a bundled model is imported to, whether or not it is there yet."""
    suffix = "" if dtype == BUNDLED_DTYPES[0] else f"-{dtype}"
    return cache / "models" / f"{name}{suffix}"


def is_imported(folder: Path) -> bool:
    """Whether an import to the folder was completed; imports appear whole or not at all."""
    return (folder / "config.json").is_file()


def resolve_model(model: str, *, cache: Path) -> Path:
    """Turn the name of an imported model, a folder or a hub id into a folder, downloading only the last.

    Raises ModelMissing, in one line that says what to do, when there is none.
    """
    if model in BUNDLED_MODELS:
        return _imported_folder(model, cache=cache)
    folder = Path(model).expanduser()
    # Not Path.is_dir, which raises for a name that is too long.
    if os.path.isdir(folder):
        return folder.resolve()
    if FOLDER_NAME.fullmatch(model) and is_imported(imported := cache / "models" / model):
        return imported
    if HUB_ID.fullmatch(model) and not model.startswith("."):
        return _download_from_hub(model)
    raise ModelMissing(
        f"there is no model {model!r}: give a bundled name ({', '.join(BUNDLED_MODELS)}), the name of "
        "an imported model, an existing folder, or a hub id such as owner/name"
    )


def read_model_folder(path: Path) -> ModelFolder:
    """Read the small files of a model folder; raises ModelError naming what is missing or wrong."""
    config = _read_json(path / "config.json")
    if config is None:
        raise ModelError(f"{path} holds no config.json: give a folder in the Hugging Face layout")
    generation = _read_json(path / "generation_config.json") or {}
    tokenizer = _read_json(path / "tokenizer_config.json") or {}
    return ModelFolder(
        path=path,
        name=_model_name(path),
        vocab_size=_count(config, "vocab_size", path=path),
        num_layers=_count(config, "num_hidden_layers", path=path),
        max_position_embeddings=_count(config, "max_position_embeddings", path=path),
        eos_token_ids=_eos_token_ids(generation, config),
        chat_template=_chat_template(path, tokenizer),
        bos_token=_token_text(tokenizer.get("bos_token")),
        eos_token=_token_text(tokenizer.get("eos_token")),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _imported_folder(name: str, *, cache: Path) -> Path:
    folder = bundled_folder(name, cache=cache)
    if not is_imported(folder):
        raise ModelMissing(f"model {name} is not imported yet: run `stepwire model import {name}`")
    return folder


def _download_from_hub(hub_id: str) -> Path:
    # Costs a quarter of a second to import and is needed for hub ids alone. Its types are partial.
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise ModelMissing(
            f"model {hub_id} cannot be downloaded from the hub, check its name and the network: "
            f"{cause}"
        ) from error


def _read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None when there is no such file."""
    try:
        value: object = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds no JSON object")
    return cast("dict[str, Any]", value)


def _model_name(path: Path) -> str:
    """The folder's name; for a hub download, whose folder is a commit hash, owner/name."""
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name


def _count(config: dict[str, Any], key: str, *, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{path / 'config.json'} needs a positive {key}, it has {value!r}")
    return value


def _eos_token_ids(generation: dict[str, Any], config: dict[str, Any]) -> frozenset[int]:
    """The generation config's ids, else the model config's: one, several or none."""
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _chat_template(path: Path, tokenizer: dict[str, Any]) -> str | None:
    """The jinja file, else the tokenizer config's text or, of several named ones, the default."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer.get("chat_template")
    if isinstance(template, list):
        named = cast("list[dict[str, str]]", template)
        return {entry["name"]: entry["template"] for entry in named}.get("default")
    return template


def _token_text(token: object) -> str | None:
    """The text of a special token, which is stored plainly or as an object with `content`."""
    if isinstance(token, dict):
        return cast("dict[str, str]", token)["content"]
    return None if token is None else str(token)
