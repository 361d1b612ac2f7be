"""How decoder layers are cut into pipeline stages."""

import pytest

from common.config import ClusterConfig, CoordinatorConfig
from common.errors import ConfigError
from coordinator.executors.placement import split_layers, stage_layers
from tests.fakes.scripted_engine import scripted_folder

FOLDER = scripted_folder(num_layers=30)


def sizes(layers: list[range]) -> list[int]:
    """How many layers each stage has."""
    return list(map(len, layers))


def configured(*counts: str) -> CoordinatorConfig:
    """A configuration of two stages, which have as many layers as said."""
    return CoordinatorConfig(cluster=ClusterConfig(pp=2, layers_per_stage=counts))


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"),
    [
        (30, 1, [30]),
        (30, 2, [15, 15]),
        (30, 4, [8, 8, 7, 7]),
        (6, 4, [2, 2, 1, 1]),
        (3, 3, [1] * 3),
    ],
)
def test_layers_left_over_go_to_the_earlier_stages(num_layers, num_stages, expected):
    """Sizes differ by one at most, and the last stage, which has the head, is never a longer one."""
    assert sizes(split_layers(num_layers, num_stages)) == expected


@pytest.mark.parametrize("num_stages", range(1, 8))
def test_every_layer_stands_on_exactly_one_stage(num_stages):
    """The ranges follow each other without gap or overlap."""
    parts = split_layers(31, num_stages)
    assert [layer for part in parts for layer in part] == list(range(31))
    assert all(parts)


def test_more_stages_than_layers_are_refused():
    """A stage without layers is a mistake of the configuration."""
    with pytest.raises(ConfigError, match=r"3 pipeline stages .* has 2: lower --pp"):
        split_layers(2, 3)


def test_layers_are_cut_evenly_unless_asked():
    """Nothing else decides."""
    assert sizes(stage_layers(FOLDER, configured(), num_stages=2)) == [15, 15]


def test_layers_are_placed_as_asked():
    """The counts of the configuration go before any arithmetic."""
    assert stage_layers(FOLDER, configured("16", "14"), num_stages=2) == [range(16), range(16, 30)]


def test_counts_of_another_model_are_refused():
    """The message says what was counted and what the model has."""
    with pytest.raises(ConfigError, match=r"--layers-per-stage 16,15 counts 31 .* model has 30"):
        stage_layers(FOLDER, configured("16", "15"), num_stages=2)
