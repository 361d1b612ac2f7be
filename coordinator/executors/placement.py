"""Which decoder layers each pipeline stage holds; plain arithmetic.

A decode step reads every weight of a stage once, and stages take turns, so the slowest one decides:
the output head counts as the layers it weighs. The embedding is looked up and costs nothing.
"""

import itertools
from collections.abc import Sequence

from common.config import CoordinatorConfig
from common.errors import ConfigError
from common.model_folder import ModelFolder

HEAD_BITS_PER_LAYER_BIT = {"int4": 8 / 5}
"""How much wider a weight of the head is than one of a layer, where the two differ."""


def stage_layers(folder: ModelFolder, config: CoordinatorConfig, *, num_stages: int) -> list[range]:
    """The layers of each stage: as the configuration says, else so that all read about the same.

    Raises ConfigError when a stage would stay empty or the configuration counts another model's.
    """
    asked = config.cluster.layer_counts
    if not asked:
        wider = HEAD_BITS_PER_LAYER_BIT.get(config.model.quantization, 1.0)
        return split_layers(folder.num_layers, num_stages, head_layers=folder.head_layers * wider)
    if sum(asked) != folder.num_layers:
        raise ConfigError(
            f"--layers-per-stage {','.join(map(str, asked))} counts {sum(asked)} layers, and the "
            f"model has {folder.num_layers}"
        )
    return _ranges(asked)


def split_layers(num_layers: int, num_stages: int, *, head_layers: float = 0.0) -> list[range]:
    """Cut the layers into one contiguous range per stage, so that the heaviest stage is lightest.

    head_layers: what the output head on the last stage weighs, in layers. Stages before the last
    differ by one layer at most, the longer ones first. Raises ConfigError when a stage would stay
    empty.
    """
    if num_layers < num_stages:
        raise ConfigError(
            f"{num_stages} pipeline stages need at least as many decoder layers, and the model "
            f"has {num_layers}: lower --pp or name fewer --workers"
        )
    num_earlier = num_stages - 1
    if not num_earlier:
        return _ranges([num_layers])

    def weights(num_last: int) -> tuple[float, float]:
        """The heaviest stage, and by how much the lightest is lighter."""
        loads = [*_even(num_layers - num_last, num_earlier), num_last + head_layers]
        return max(loads), max(loads) - min(loads)

    # Of equals the first, so the last stage is never a longer one for nothing.
    num_last = min(range(1, num_layers - num_earlier + 1), key=weights)
    return _ranges([*_even(num_layers - num_last, num_earlier), num_last])


def _even(num_layers: int, num_stages: int) -> list[int]:
    """Counts that differ by one at most, the larger first."""
    size, num_longer = divmod(num_layers, num_stages)
    return [size + (stage < num_longer) for stage in range(num_stages)]


def _ranges(counts: Sequence[int]) -> list[range]:
    bounds = itertools.accumulate(counts, initial=0)
    return [range(first, end) for first, end in itertools.pairwise(bounds)]
