"""A folder of safetensors as one set of lazy tensors; knows no model.

A folder holds model.safetensors, or several files and model.safetensors.index.json.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import ModelError
from worker_service.weights.rules import Region

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BYTES_PER_ELEMENT = {"F32": 4, "F16": 2, "BF16": 2}

_MAX_HEADER_BYTES = 100 << 20
_NUM_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies and what it is; dtype as safetensors spells it, e.g. "BF16"."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """The tensors of a folder; only what `read` asks for is read."""

    def __init__(self, tensors: dict[str, StoredTensor], *, digest: str, files: ExitStack) -> None:
        self.tensors = tensors
        self.digest = digest
        self._files = files
        self._open_files: dict[Path, Any] = {}

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[Self]:
        """Read the files' headers; raises ModelError naming a file that is missing or damaged.

        The digest is a SHA-256 of every file's header (names, dtypes, shapes, offsets), size and 16
        pages spread evenly over it: cheap, equal on every host, and different for other weights
        unless those agree in all of that.
        """
        digest = hashlib.sha256()
        tensors: dict[str, StoredTensor] = {}
        for file in _files(folder):
            for tensor in _read_header(file, digest=digest):
                tensors[tensor.name] = tensor
        with ExitStack() as files:
            yield cls(tensors, digest=digest.hexdigest(), files=files)

    def read(self, name: str, region: Region) -> Tensor:
        """One tensor's region on the host, mapped from the file when it is the whole tensor."""
        file = self._open(self.tensors[name].file)
        return file.get_slice(name)[region] if region else file.get_tensor(name)

    def _open(self, path: Path) -> Any:
        if path not in self._open_files:
            try:
                file = self._files.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error
            self._open_files[path] = file
        return self._open_files[path]


def _files(folder: Path) -> list[Path]:
    """The safetensors files of the folder, sorted; all of them exist."""
    index = folder / INDEX_FILE
    if index.is_file():
        files = sorted(folder / name for name in set(_read_index(index).values()))
    else:
        files = [folder / SINGLE_FILE]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} is missing; the model folder is incomplete")
    return files


def _read_index(path: Path) -> dict[str, str]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a safetensors index: {error!r}") from error


def _read_header(path: Path, *, digest: "hashlib._Hash") -> list[StoredTensor]:
    """Parse a file's header and feed the digest with what it says of the file."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ModelError(f"{path} is not a safetensors file")
            raw = file.read(header_bytes)
            header = json.loads(raw)
            size = path.stat().st_size
            digest.update(raw)
            digest.update(size.to_bytes(8, "little"))
            for index in range(_NUM_SAMPLES):
                file.seek(size * index // _NUM_SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
    header.pop("__metadata__", None)
    _check_size(path, header=header, data_bytes=size - 8 - header_bytes)
    return [_stored(path, name=name, entry=entry) for name, entry in header.items()]


def _check_size(path: Path, *, header: dict[str, Any], data_bytes: int) -> None:
    needed = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if needed != data_bytes:
        raise ModelError(f"{path} holds {data_bytes} bytes of tensors instead of {needed}")


def _stored(path: Path, *, name: str, entry: dict[str, Any]) -> StoredTensor:
    return StoredTensor(name=name, file=path, dtype=entry["dtype"], shape=tuple(entry["shape"]))


def region_shape(shape: tuple[int, ...], region: Region) -> tuple[int, ...]:
    """The shape of a tensor's region."""
    cut = tuple(
        len(range(*part.indices(extent)))
        for part, extent in zip(region, shape[: len(region)], strict=True)
    )
    return cut + shape[len(region) :]


def region_bytes(tensor: StoredTensor, region: Region) -> int:
    """Bytes a region takes in its file."""
    return math.prod(region_shape(tensor.shape, region)) * BYTES_PER_ELEMENT[tensor.dtype]
