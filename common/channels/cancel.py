"""A cancel token: one thread says that a result is no longer wanted, another stops waiting for it."""

from collections.abc import Callable
from threading import Lock

from common.errors import Cancelled


class CancelToken:
    """Cancelled at most once, from any thread; callbacks run in the cancelling thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._reason is not None

    def cancel(self, reason: str) -> None:
        """Cancel and call every callback; the first reason stands, a second call does nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        # Outside the lock: a callback may take a lock under which another thread adds its own.
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call back on cancellation; at once when that has happened already."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return
        callback()

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Forget a callback; nothing happens when it ran already or was never added."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled with the reason once the token is cancelled."""
        if self._reason is not None:
            raise Cancelled(self._reason)
