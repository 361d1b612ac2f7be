"""Ends a text at the first stop string, also one that arrives in pieces; knows nothing of tokens."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on, except the tail that may still turn out to begin a stop string.

    A stop string and everything after it are not part of the text. When several could match, the
    one that is complete first ends the text; of those complete at once, the one beginning first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings, none of them empty."""
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Add text and return what is certain to stand before any stop string."""
        if not self._stops or not text:
            return text
        self._held += text
        if (match := self._first_match()) is not None:
            begin, self.matched = match
            return self._release(begin)
        return self._release(len(self._held) - self._num_held_back())

    def flush(self) -> str:
        """Return the held tail: nothing follows, so it begins no stop string."""
        return "" if self.is_stopped else self._release(len(self._held))

    def _first_match(self) -> tuple[int, str] | None:
        """Where the stop string begins that is complete first, if one is, and which it is."""
        matches = [
            (begin + len(stop), begin, stop)
            for stop in self._stops
            if (begin := self._held.find(stop)) >= 0
        ]
        return min(matches)[1:] if matches else None

    def _num_held_back(self) -> int:
        """Length of the longest tail that is the beginning of a stop string."""
        longest = min(self._longest - 1, len(self._held))
        for length in range(longest, 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        return released
