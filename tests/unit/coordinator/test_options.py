"""Facts of the command-line options made from the settings."""

import click
import pytest

from common.config import CoordinatorConfig
from coordinator.options import config_options


@pytest.mark.parametrize(
    ("arguments", "value"), [([], None), (["--prefix-cache"], True), (["--no-prefix-cache"], False)]
)
def test_boolean_setting_has_an_option_and_its_opposite(
    arguments: list[str],
    value: bool | None,  # noqa: FBT001 - the value under test
):
    """Neither given leaves the choice to variables and file."""
    given: dict[str, object] = {}

    @click.command
    @config_options(CoordinatorConfig)
    def command(**flags: object) -> None:
        given.update(flags)

    command.main(args=arguments, standalone_mode=False)
    assert given["prefix_cache"] is value
