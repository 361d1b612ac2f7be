"""Settings of captured graphs: how much of a step is in one, and for which sizes of steps."""

from common.errors import ConfigError

CUDAGRAPH_MODES = ("auto", "none", "piecewise", "full")

MODE_HELP = (
    "auto (the most there can be), none, piecewise or full: how much of a step a graph replays"
)
SIZES_HELP = "tokens of the steps graphs are captured for, as 1,2,4,8 (default: up to 512)"


def parse_capture_sizes(sizes: tuple[str, ...]) -> tuple[int, ...]:
    """The sizes as numbers; raises ConfigError for what is no positive integer."""
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ConfigError(
            f"--cudagraph-capture-sizes must be positive integers such as 1,2,4, not "
            f"{','.join(sizes)!r}"
        )
    return tuple(map(int, sizes))
