"""How often each Triton kernel was launched by this process: what shows that a path was taken."""

from collections import Counter

_LAUNCHES: Counter[str] = Counter()


def count_launch(kernel: str) -> None:
    """Note a launch."""
    _LAUNCHES[kernel] += 1


def num_launches() -> dict[str, int]:
    """Launches so far, by kernel."""
    return dict(_LAUNCHES)
