"""The time, as an argument: nothing else reads it, so that tests can move it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock for durations and deadlines, and the Unix time for people."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        ...

    def unix_time(self) -> float:
        """Seconds since 1970 in UTC; may jump."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def monotonic_ns(self) -> int:
        """Nanoseconds of `time.monotonic_ns`."""
        return time.monotonic_ns()

    def unix_time(self) -> float:
        """Seconds of `time.time`."""
        return time.time()
