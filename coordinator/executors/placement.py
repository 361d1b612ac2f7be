"""Which decoder layers each pipeline stage holds; plain arithmetic."""

import itertools

from common.errors import ConfigError


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Cut the layers into one contiguous range per stage, sizes differing by at most one.

    The longer ranges come first: the last stage also computes the logits, which costs as much as
    several layers, while the first stage's embedding is a mere lookup. Raises ConfigError when a
    stage would stay empty.
    """
    if num_layers < num_stages:
        raise ConfigError(
            f"{num_stages} pipeline stages need at least as many decoder layers, and the model "
            f"has {num_layers}: lower --pp or name fewer --workers"
        )
    size, num_longer = divmod(num_layers, num_stages)
    bounds = [stage * size + min(stage, num_longer) for stage in range(num_stages + 1)]
    return [range(first, end) for first, end in itertools.pairwise(bounds)]
