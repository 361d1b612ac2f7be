"""Facts of the command-line options made from the settings."""

import click
import pytest

from common.config import CoordinatorConfig
from coordinator.options import config_options, given_flags


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


def test_values_become_the_arguments_that_give_them():
    """Booleans take no value, and what was not given is not passed on."""
    values = {"listen": "127.0.0.1:1", "allow_plaintext": True, "lazy": False, "threads": None}
    assert given_flags(values) == ["--listen=127.0.0.1:1", "--allow-plaintext", "--no-lazy"]
