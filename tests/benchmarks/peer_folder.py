"""Where the programs we compare with are installed, beside the imported models."""

import sys
from pathlib import Path

from common.config_loader import cache_folder


def peer_folder(name: str) -> Path:
    """The folder that peers/NAME.sh has filled; ends the benchmark with what to do when it did not."""
    folder = cache_folder() / "peers" / name
    if not folder.is_dir():
        sys.exit(f"error: run `sh tests/benchmarks/peers/{name}.sh` first; {folder} is missing")
    return folder


def recorded_version(folder: Path, pattern: str) -> str:
    """The version that the package metadata below the folder names."""
    for file in folder.glob(pattern):
        for line in file.read_text().splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ")
    return "unknown"
