"""A clock whose time moves when it is told to."""


class ManualClock:
    """Starts at 0 s on every scale."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._seconds

    def monotonic_ns(self) -> int:
        """Nanoseconds since the start."""
        return round(self._seconds * 1e9)

    def unix_time(self) -> float:
        """Seconds since the start, as if that were 1970."""
        return self._seconds
