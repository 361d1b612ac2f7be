"""Facts of waiting for a model that another process imports."""

import pytest

from common.errors import ModelError, ModelMissing
from coordinator.awaited_model import await_model
from tests.fakes.virtual_time import run_in_virtual_time


class Folders:
    """Finds nothing until it was asked often enough; `causes` are the reasons told meanwhile."""

    def __init__(self, *, num_misses: int) -> None:
        self.causes: list[str] = []
        self._num_misses = num_misses

    async def find(self) -> str:
        """The folder, or why there is none."""
        if len(self.causes) < self._num_misses:
            raise ModelMissing("not imported yet")
        return "folder"

    def wait(self, seconds: float) -> str:
        """What is found within that many virtual seconds."""
        waiting = await_model(self.find, patience=seconds, on_missing=self.causes.append)
        return run_in_virtual_time(waiting)


def test_model_that_is_there_is_taken_at_once():
    """Nobody is told of a wait that there is not."""
    folders = Folders(num_misses=0)
    assert (folders.wait(0), folders.causes) == ("folder", [])


def test_model_may_come_while_one_waits():
    """Every look that finds nothing is told with its reason."""
    folders = Folders(num_misses=3)
    assert (folders.wait(60), folders.causes) == ("folder", ["not imported yet"] * 3)


@pytest.mark.parametrize(("seconds", "num_looks"), [(0.0, 0), (1.0, 2)])
def test_patience_ends_with_the_reason(seconds: float, num_looks: int):
    """Without patience the first miss is the error, with it the last one is."""
    folders = Folders(num_misses=100)
    with pytest.raises(ModelMissing, match="not imported yet"):
        folders.wait(seconds)
    assert len(folders.causes) == num_looks


def test_broken_model_is_not_waited_for():
    """A folder that cannot be read will not mend itself."""

    async def find() -> str:
        raise ModelError("config.json holds no JSON object")

    waiting = await_model(find, patience=60, on_missing=lambda cause: None)
    with pytest.raises(ModelError, match="no JSON"):
        run_in_virtual_time(waiting)
