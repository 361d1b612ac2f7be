"""The board behind the health service."""

from common.health import HealthBoard


def test_unknown_until_set():
    """A name is unknown, and does not serve, until it was set."""
    board = HealthBoard()
    assert not board.is_known("x")
    assert not board.is_serving("x")
    board.set("x", serving=False)
    assert board.is_known("x")
    assert not board.is_serving("x")
    board.set("x", serving=True)
    assert board.is_serving("x")


async def test_watchers_hear_until_they_leave():
    """Every change sets a watcher's event, until it is no longer a watcher."""
    board = HealthBoard()
    watcher = board.watch()
    board.set("x", serving=True)
    assert watcher.is_set()
    watcher.clear()
    board.unwatch(watcher)
    board.set("x", serving=False)
    assert not watcher.is_set()
