"""What pyproject.toml says each service needs is what its modules import."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"common", "coordinator", "worker_service", "stepwire"}
FOUNDATIONS = {"pydantic", "pydantic_core", "starlette"}
"""What fastapi is made of, in the versions that it chooses."""
OPTIONAL = {"opentelemetry"}
"""Imported where it is used, and done without where it is missing."""


def names(requirements: list[str]) -> set[str]:
    """The packages of requirements, spelt as package indexes compare them."""
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {normal(match[0]) for match in found if match}


def normal(name: str) -> str:
    """A package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_packages(folder: Path) -> Iterator[tuple[str, str]]:
    """File and top-level package of every import of other people's code below a folder."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import():
                    modules = [alias.name for alias in node.names]
                case ast.ImportFrom(level=0, module=str(module)):
                    modules = [module]
                case _:
                    continue
            for module in modules:
                package = module.partition(".")[0]
                if package not in sys.stdlib_module_names | OWN | FOUNDATIONS | OPTIONAL:
                    yield file.relative_to(ROOT).as_posix(), package


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(("common", "coordinator"), ()), (("worker_service",), ("worker", "cuda"))],
)
def test_every_import_is_a_declared_dependency(folders: tuple[str, ...], extras: tuple[str, ...]):
    """The image of a service is built from these lists alone, so none may lean on the other's."""
    declared = names(PROJECT["dependencies"]).union(
        *(names(PROJECT["optional-dependencies"][extra]) for extra in extras)
    )
    distributions = packages_distributions()
    missing = {
        (file, package)
        for folder in folders
        for file, package in imported_packages(ROOT / folder)
        if not declared & set(map(normal, distributions.get(package, [package])))
    }
    assert missing == set()


def test_coordinator_needs_no_torch():
    """Its image is small and starts quickly for that reason."""
    heavy = {"torch", "transformers", "triton", "accelerate", "safetensors"}
    assert names(PROJECT["dependencies"]) & heavy == set()
