"""What a figure depends on beside the code's question: processor, cores, versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_bf16")
"""Instruction sets that kernels are chosen by."""

PACKAGES = ("stepwire", "torch", "transformers", "numpy", "grpcio")


def machine() -> dict[str, str | int | list[str]]:
    """The processor and how much of it there is."""
    known = _cpuinfo()
    flags = known.get("flags", "").split()
    return {
        "cpu": known.get("model name", platform.processor()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cpus": os.cpu_count() or 1,
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Python and the packages that compute or carry steps."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, with a plus when files differ from it; empty without git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines; empty where the system has no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
