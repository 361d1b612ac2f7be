"""Cuts a model folder down to its first layers: a small model that often says what the whole one does."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write_truncated_model(source: Path, folder: Path, *, num_layers: int) -> Path:
    """Write the first layers of source, its ends and its tokenizer into folder, and return folder."""
    config = json.loads((source / "config.json").read_text())
    is_kept_by_layer = {
        str(layer): layer < num_layers for layer in range(config["num_hidden_layers"])
    }
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - the file is no mapping
                _, _, behind = name.partition("model.layers.")
                if is_kept_by_layer.get(behind.partition(".")[0], True):
                    tensors[name] = weights.get_tensor(name)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": num_layers}))
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    return folder
