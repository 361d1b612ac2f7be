"""The system clock: monotonic in both units, and the Unix time."""

from datetime import UTC, datetime

from common.clock import SystemClock


def test_both_units_agree():
    """Seconds and nanoseconds are of the same clock, which does not go back."""
    clock = SystemClock()
    before = clock.monotonic()
    between = clock.monotonic_ns() / 1e9
    assert before <= between <= clock.monotonic()


def test_unix_time():
    """The Unix time is now."""
    assert abs(SystemClock().unix_time() - datetime.now(UTC).timestamp()) < 5
