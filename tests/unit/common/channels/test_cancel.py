"""Cancel tokens."""

import pytest

from common.channels.cancel import CancelToken
from common.errors import Cancelled


def test_first_reason_stands():
    """Cancelling twice keeps the first reason and calls back once."""
    calls: list[str] = []
    token = CancelToken()
    token.raise_if_cancelled()
    token.add_callback(lambda: calls.append("called"))
    token.cancel("first")
    token.cancel("second")
    assert token.is_cancelled
    assert calls == ["called"]
    with pytest.raises(Cancelled, match="first"):
        token.raise_if_cancelled()


def test_late_callback_runs_at_once():
    """A callback added after the cancellation runs at once."""
    token = CancelToken()
    token.cancel("over")
    calls: list[str] = []
    token.add_callback(lambda: calls.append("called"))
    assert calls == ["called"]


def test_removed_callback_is_not_called():
    """A removed callback is not called; removing it again does nothing."""
    calls: list[str] = []

    def callback() -> None:
        calls.append("called")

    token = CancelToken()
    token.add_callback(callback)
    token.remove_callback(callback)
    token.remove_callback(callback)
    token.cancel("over")
    assert calls == []


def test_callback_may_use_the_token():
    """Callbacks run outside the token's lock, so one may ask or add to it."""
    token = CancelToken()
    seen: list[bool] = []
    token.add_callback(lambda: token.add_callback(lambda: seen.append(token.is_cancelled)))
    token.cancel("over")
    assert seen == [True]
