"""What a GGUF file says of itself that decides whether and how it can be imported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from common.errors import ModelError

ARCHITECTURES = ("llama", "gemma3")
"""Model families of the format that workers can serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMetadata:
    """Architecture, kind of vocabulary ("gpt2": byte-level, "llama": SentencePiece), how text is split.

    pre_tokenizer is empty where the file does not say.
    """

    architecture: str
    vocabulary: str
    pre_tokenizer: str


def read_metadata(file: Path) -> GgufMetadata:
    """Read the file's header; raises ModelError for none, a part, or a family not served here."""
    try:
        reader = GGUFReader(file)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{file} is no GGUF file that can be read: {error}") from error

    fields = reader.fields

    def text(key: str) -> str:
        field: Any = fields.get(key)
        return "" if field is None else str(field.contents())

    metadata = GgufMetadata(
        architecture=text("general.architecture"),
        vocabulary=text("tokenizer.ggml.model"),
        pre_tokenizer=text("tokenizer.ggml.pre"),
    )
    if metadata.architecture not in ARCHITECTURES:
        raise ModelError(
            f"{file.name} holds a model of the family {metadata.architecture!r}; "
            f"served are: {', '.join(ARCHITECTURES)}"
        )
    # Without its sizes a model of the family's default ones would be made, which may fill the memory.
    sizes = [f"{metadata.architecture}.{size}" for size in ("block_count", "embedding_length")]
    missing = [key for key in (*sizes, "tokenizer.ggml.tokens") if key not in fields]
    if not reader.tensors:
        missing.append("tensors")
    if missing:
        raise ModelError(f"{file.name} holds no whole model: it lacks {', '.join(missing)}")
    return metadata
