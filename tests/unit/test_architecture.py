"""The tree keeps to its own rules: import directions, names and sizes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for folder in ("common", "coordinator", "worker_service", "deploy", "tests")
    for file in (ROOT / folder).rglob("*.py")
)

MAX_LINES = 400
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "base"}

IMPORTS_WIRE = re.compile(r"^\s*(?:from|import) stepwire\.v1", re.MULTILINE)
MAY_IMPORT_WIRE = re.compile(
    r"common/(codecs|rpc)/.*|worker_service/(app|servicer|step_stream)\.py"
    r"|coordinator/(client|client_answers|api/\w+_servicer|api/front|executors/remote)\.py"
    r"|tests/.*"
)


def relative(file: Path) -> str:
    """The file's path below the root, with slashes."""
    return file.relative_to(ROOT).as_posix()


def test_import_contracts_hold():
    """No module imports against the directions declared in pyproject.toml."""
    command = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("package", ["common", "coordinator"])
def test_imports_without_torch(package: str):
    """Importing every module of the package brings neither torch nor transformers."""
    program = (
        f"import importlib, pkgutil, sys, {package}\n"
        f"for module in pkgutil.walk_packages({package}.__path__, '{package}.'):\n"
        "    module.name.endswith('__main__') or importlib.import_module(module.name)\n"
        "print({'torch', 'transformers'} & sys.modules.keys())\n"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert imported.stdout == "set()\n"


def test_generated_code_stays_at_the_edges():
    """Only codecs, RPC plumbing, servicers and who serves them, clients and tests import the generated messages."""
    importers = {relative(file) for file in SOURCES if IMPORTS_WIRE.search(file.read_text())}
    assert [file for file in sorted(importers) if not MAY_IMPORT_WIRE.fullmatch(file)] == []


def test_proto_is_no_package():
    """Without __init__.py in proto/, the module `proto` of proto-plus is not shadowed."""
    assert list((ROOT / "proto").rglob("__init__.py")) == []


def test_names_say_what_is_inside():
    """No file or folder is called after a heap of things."""
    parts = {part for file in SOURCES for part in file.relative_to(ROOT).with_suffix("").parts}
    assert parts & BANNED_NAMES == set()


def test_files_hold_one_idea():
    """No file is longer than 400 lines."""
    lengths = {relative(file): len(file.read_text().splitlines()) for file in SOURCES}
    assert {file: length for file, length in lengths.items() if length > MAX_LINES} == {}
