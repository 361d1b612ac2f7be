"""What a gateway is told of a model: facts of its folder, and the files of its tokenizer."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from common.errors import ModelError
from common.model_folder import read_model_folder
from coordinator.engine.generation import ServedModel

TOKENIZER_FILES = ("*.jinja", "*.json", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
WEIGHT_INDEX = "*.index.json"
CHUNK_BYTES = 1 << 16
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can tell: equal files make equal archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a gateway asks beyond the served model; a token the model does not have is 0."""

    path: str
    model_type: str
    architectures: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int
    pad_token_id: int


def read_model_facts(folder: Path) -> ModelFacts:
    """Read the small files of a model folder; blocks; raises ModelError when one is wrong."""
    config = _config(folder)
    return ModelFacts(
        path=str(folder),
        model_type=str(config.get("model_type") or ""),
        architectures=tuple(config.get("architectures") or ()),
        eos_token_ids=tuple(sorted(read_model_folder(folder).eos_token_ids)),
        bos_token_id=_token_id(config, "bos_token_id"),
        pad_token_id=_token_id(config, "pad_token_id"),
    )


def encode_model_info(model: ServedModel, facts: ModelFacts) -> pb.GetModelInfoResponse:
    """The response about one model.

    No sampling defaults are told: what a request leaves open is the same on every protocol.
    """
    return pb.GetModelInfoResponse(
        model_path=facts.path,
        tokenizer_path=facts.path,
        served_model_name=model.name,
        is_generation=True,
        max_context_length=model.max_model_len,
        # One token is left for the output.
        max_req_input_len=model.max_model_len - 1,
        vocab_size=model.vocab_size,
        model_type=facts.model_type,
        architectures=facts.architectures,
        eos_token_ids=facts.eos_token_ids,
        bos_token_id=facts.bos_token_id,
        pad_token_id=facts.pad_token_id,
    )


def zip_tokenizer(folder: Path) -> bytes:
    """An archive of everything but the weights; blocks; raises ModelError when there is nothing."""
    files = sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)})
    files = [file for file in files if not file.match(WEIGHT_INDEX)]
    if not files:
        raise ModelError(f"{folder} holds no files of a tokenizer")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for file in files:
            entry = zipfile.ZipInfo(file.name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, file.read_bytes())
    return archive.getvalue()


def tokenizer_chunks(archive: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The archive in pieces; the last one carries the fingerprint of the whole."""
    fingerprint = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), CHUNK_BYTES):
        is_last = start + CHUNK_BYTES >= len(archive)
        yield common_pb2.GetTokenizerChunk(
            data=archive[start : start + CHUNK_BYTES], sha256=fingerprint if is_last else ""
        )


def _config(folder: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error


def _token_id(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) else 0
