"""Which decoder layers each pipeline stage holds; plain arithmetic."""

import itertools
from collections.abc import Sequence

from common.config import CoordinatorConfig
from common.errors import ConfigError
from common.model_folder import ModelFolder


def stage_layers(folder: ModelFolder, config: CoordinatorConfig, *, num_stages: int) -> list[range]:
    """The layers of each stage: as the configuration says, else evenly.

    Raises ConfigError when a stage would stay empty or the configuration counts another model's.
    """
    asked = config.cluster.layer_counts
    if not asked:
        return split_layers(folder.num_layers, num_stages)
    if sum(asked) != folder.num_layers:
        raise ConfigError(
            f"--layers-per-stage {','.join(map(str, asked))} counts {sum(asked)} layers, and the "
            f"model has {folder.num_layers}"
        )
    return _ranges(asked)


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Cut the layers into one contiguous range per stage, sizes differing by at most one.

    The longer ranges come first: the last stage computes the logits as well, while the first one's
    embedding is a mere lookup. Raises ConfigError when a stage would stay empty.
    """
    if num_layers < num_stages:
        raise ConfigError(
            f"{num_stages} pipeline stages need at least as many decoder layers, and the model "
            f"has {num_layers}: lower --pp or name fewer --workers"
        )
    size, num_longer = divmod(num_layers, num_stages)
    return _ranges([size + (stage < num_longer) for stage in range(num_stages)])


def _ranges(counts: Sequence[int]) -> list[range]:
    bounds = itertools.accumulate(counts, initial=0)
    return [range(first, end) for first, end in itertools.pairwise(bounds)]
