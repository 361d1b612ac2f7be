"""How decoder layers are cut into pipeline stages."""

from dataclasses import replace

import pytest

from common.config import ClusterConfig, CoordinatorConfig, ModelConfig
from common.errors import ConfigError
from coordinator.executors.placement import split_layers, stage_layers
from tests.fakes.scripted_engine import scripted_folder

FOLDER = replace(scripted_folder(num_layers=30), head_layers=8.0)


def sizes(layers: list[range]) -> list[int]:
    """How many layers each stage has."""
    return list(map(len, layers))


def configured(*counts: str, quantization: str = "none") -> CoordinatorConfig:
    """A configuration of two stages, which have as many layers as said."""
    return CoordinatorConfig(
        model=ModelConfig(quantization=quantization),
        cluster=ClusterConfig(pp=2, layers_per_stage=counts),
    )


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


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "head_layers", "expected"),
    [
        (30, 1, 8.0, [30]),
        (30, 2, 8.0, [19, 11]),
        (30, 3, 8.0, [13, 13, 4]),
        (32, 2, 2.4, [17, 15]),
        (80, 4, 1.2, [21, 20, 20, 19]),
        (6, 2, 0.45, [3, 3]),
        (4, 2, 100.0, [3, 1]),
        (3, 3, 100.0, [1, 1, 1]),
    ],
)
def test_head_takes_the_place_of_the_layers_it_weighs(
    num_layers, num_stages, head_layers, expected
):
    """The heaviest stage is as light as can be, and none is empty however heavy the head is."""
    assert sizes(split_layers(num_layers, num_stages, head_layers=head_layers)) == expected


@pytest.mark.parametrize("num_stages", range(1, 8))
@pytest.mark.parametrize("head_layers", [0.0, 2.5, 40.0])
def test_every_layer_stands_on_exactly_one_stage(num_stages, head_layers):
    """The ranges follow each other without gap or overlap."""
    parts = split_layers(31, num_stages, head_layers=head_layers)
    assert [layer for part in parts for layer in part] == list(range(31))
    assert all(parts)


def test_more_stages_than_layers_are_refused():
    """A stage without layers is a mistake of the configuration."""
    with pytest.raises(ConfigError, match=r"3 pipeline stages .* has 2: lower --pp"):
        split_layers(2, 3)


def test_head_of_the_model_counts():
    """Unasked, the head's weights decide."""
    assert sizes(stage_layers(FOLDER, configured(), num_stages=2)) == [19, 11]


def test_head_weighs_more_beside_layers_of_four_bits():
    """An int4 model keeps a head of 8 bits, which weighs 12.8 of its layers of 5."""
    assert sizes(stage_layers(FOLDER, configured(quantization="int4"), num_stages=2)) == [21, 9]


def test_layers_are_placed_as_asked():
    """The counts of the configuration go before any arithmetic."""
    assert stage_layers(FOLDER, configured("16", "14"), num_stages=2) == [range(16), range(16, 30)]


def test_counts_of_another_model_are_refused():
    """The message says what was counted and what the model has."""
    with pytest.raises(ConfigError, match=r"--layers-per-stage 16,15 counts 31 .* model has 30"):
        stage_layers(FOLDER, configured("16", "15"), num_stages=2)
