"""The command prints the folder, or one line that says what is wrong."""

from pathlib import Path

import pytest

from common.model_folder import bundled_folder
from worker_service.model_import.command import main


@pytest.mark.parametrize("command", ["import", "path"])
def test_prints_the_imported_folder(tmp_path: Path, capsys, command: str):
    """For a model that is there, the only line on stdout is its folder."""
    folder = bundled_folder("smollm2-135m", cache=tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert main([command, "smollm2-135m", "--cache", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{folder}\n", "")


@pytest.mark.parametrize("command", ["import", "path"])
def test_unknown_model_is_one_line_on_stderr(tmp_path: Path, capsys, command: str):
    """A name that means nothing ends with exit code 1, a line on stderr and nothing on stdout."""
    assert main([command, "gpt-5", "--cache", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
