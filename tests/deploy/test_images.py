"""The images and who runs them: what a build may see, and what a container may do."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
GPU = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())["services"]
DOCKERIGNORE = (ROOT / ".dockerignore").read_text().splitlines()
PACKAGES = {"common", "coordinator", "worker_service", "proto/gen"}


def instructions(file: Path) -> list[list[str]]:
    """The words of each instruction, continued lines joined, comments left out."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)
    return [line.split() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def copied_paths(file: Path) -> Iterator[str]:
    """What an image takes from the checkout."""
    for name, *words in instructions(file):
        if name == "COPY" and not words[0].startswith("--from"):
            yield from words[:-1]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_build_sees_what_it_copies(file: Path):
    """The ignore file lets in what is named, so a new folder of a service must be named there."""
    for path in copied_paths(file):
        assert (ROOT / path).exists(), path
        assert f"!{path}" in DOCKERIGNORE, path


def test_worker_image_holds_every_package_and_the_coordinators_all_but_the_worker():
    """A package that is not copied is missing only when it is imported."""
    copied = {file.stem: set(copied_paths(file)) for file in DOCKERFILES}
    assert copied["worker"] >= PACKAGES
    assert copied["coordinator"] & PACKAGES == PACKAGES - {"worker_service"}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_container_is_no_root_and_gets_its_signals(file: Path):
    """The user is a number, which a cluster can tell from 0, and no shell stands before the process."""
    last = {name: words for name, *words in instructions(file)}
    user, _, group = last["USER"][0].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert " ".join(last["ENTRYPOINT"]) == '["stepwire"]'


@pytest.mark.parametrize("name", COMPOSE)
def test_container_may_do_no_more_than_it_must(name: str):
    """No service can write to its image, gain rights, or be reached from other machines."""
    service: dict[str, Any] = COMPOSE[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_model_is_written_by_its_import_alone():
    """Everybody else reads the volume."""
    mounts = {name: service["volumes"] for name, service in COMPOSE.items()}
    assert mounts.pop("model") == ["models:/models"]
    assert all(mount == ["models:/models:ro"] for mount in mounts.values())


def test_each_worker_gets_a_gpu_of_its_own():
    """Two stages on one GPU would share its memory and wait for each other."""
    workers = [name for name in COMPOSE if name.startswith("worker-")]
    devices = [
        device
        for name in workers
        for request in GPU[name]["deploy"]["resources"]["reservations"]["devices"]
        for device in request["device_ids"]
    ]
    assert len(set(devices)) == len(devices) == len(workers)
    assert all(GPU[name]["environment"] == {"STEPWIRE_DEVICE": "cuda"} for name in workers)
