"""How decoder layers are cut into pipeline stages."""

import pytest

from common.errors import ConfigError
from coordinator.executors.placement import split_layers


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [
        (30, 1, [30]),
        (30, 2, [15, 15]),
        (30, 4, [8, 8, 7, 7]),
        (6, 4, [2, 2, 1, 1]),
        (3, 3, [1] * 3),
    ],
)
def test_layers_left_over_go_to_the_earlier_stages(num_layers, num_stages, sizes):
    """Sizes differ by one at most, and the last stage, which has the head, is never a longer one."""
    assert [len(layers) for layers in split_layers(num_layers, num_stages)] == sizes


@pytest.mark.parametrize("num_stages", range(1, 8))
def test_every_layer_stands_on_exactly_one_stage(num_stages):
    """The ranges follow each other without gap or overlap."""
    layers = [layer for part in split_layers(31, num_stages) for layer in part]
    assert layers == list(range(31))


def test_more_stages_than_layers_are_refused():
    """A stage without layers is a mistake of the configuration."""
    with pytest.raises(ConfigError, match=r"3 pipeline stages .* has 2: lower --pp"):
        split_layers(2, 3)
