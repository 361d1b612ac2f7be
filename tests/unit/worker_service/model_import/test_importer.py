"""An import happens once and leaves a whole folder or none."""

import threading
from pathlib import Path

import pytest

from common.errors import ModelError
from common.model_folder import BUNDLED_MODELS, is_imported
from worker_service.model_import.bundled import BUNDLED, BundledModel
from worker_service.model_import.importer import import_model

NAME = "smollm2-135m"


class CountingBuild:
    """Writes a config and counts its calls; waits for `may_finish` after it began."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.may_finish = threading.Event()
        self.may_finish.set()

    def __call__(self, model: BundledModel, folder: Path, dtype: str) -> None:
        """Write config.json with the dtype as its text."""
        self.num_calls += 1
        assert self.may_finish.wait(timeout=10)
        (folder / "config.json").write_text(dtype)


def test_every_bundled_name_has_a_package():
    """The names that both services know are the names that can be imported."""
    assert tuple(BUNDLED) == BUNDLED_MODELS


def test_second_import_returns_at_once(tmp_path: Path):
    """What is imported is not built again."""
    build = CountingBuild()
    first = import_model(NAME, cache=tmp_path, dtype="bfloat16", build=build)
    second = import_model(NAME, cache=tmp_path, dtype="bfloat16", build=build)
    assert first == second
    assert is_imported(first)
    assert build.num_calls == 1


def test_dtypes_do_not_share_a_folder(tmp_path: Path):
    """Each dtype is built in a folder of its own."""
    build = CountingBuild()
    folders = [
        import_model(NAME, cache=tmp_path, dtype=dtype, build=build)
        for dtype in ("bfloat16", "float32")
    ]
    assert [(folder / "config.json").read_text() for folder in folders] == ["bfloat16", "float32"]


def test_concurrent_imports_build_once(tmp_path: Path):
    """An import that meets another one waits for it and builds nothing."""
    build = CountingBuild()
    build.may_finish.clear()

    def run() -> None:
        import_model(NAME, cache=tmp_path, dtype="bfloat16", build=build)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    build.may_finish.set()
    for thread in threads:
        thread.join(timeout=10)
    assert build.num_calls == 1


def test_failed_import_leaves_nothing(tmp_path: Path):
    """After a failure there is no folder that could be mistaken for a model, and no leftover."""

    def fail(model: BundledModel, folder: Path, dtype: str) -> None:
        (folder / "model.safetensors").write_text("half")
        raise ModelError("the download is damaged")

    with pytest.raises(ModelError, match="damaged"):
        import_model(NAME, cache=tmp_path, dtype="bfloat16", build=fail)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [f".{NAME}.lock"]


def test_leftovers_of_a_killed_import_are_removed(tmp_path: Path):
    """What a killed process left behind neither stops nor enters the next import."""
    leftover = tmp_path / "models" / f".{NAME}.partial" / "folder"
    leftover.mkdir(parents=True)
    (leftover / "old").touch()
    folder = import_model(NAME, cache=tmp_path, dtype="bfloat16", build=CountingBuild())
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_cache_that_cannot_be_written_is_named(tmp_path: Path):
    """The error names the folder when the cache is no folder."""
    (tmp_path / "models").touch()
    with pytest.raises(ModelError, match=str(tmp_path)):
        import_model(NAME, cache=tmp_path, dtype="bfloat16", build=CountingBuild())


@pytest.mark.parametrize(("name", "dtype"), [("gpt-5", "bfloat16"), (NAME, "int4")])
def test_unknown_name_or_dtype_is_refused(tmp_path: Path, name: str, dtype: str):
    """The error names the choices."""
    with pytest.raises(ModelError, match=f"{NAME}|float32"):
        import_model(name, cache=tmp_path, dtype=dtype, build=CountingBuild())
