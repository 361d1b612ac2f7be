"""Configuration slices as command-line options: the flags are the settings, no list is kept twice."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from common.config import CoordinatorConfig, WorkerConfig
from common.config_loader import FlagSpec, flag_specs

Command = Callable[..., Any]


def config_options(kind: type[CoordinatorConfig] | type[WorkerConfig]) -> Callable[[Command], Any]:
    """Add --config and an option per setting to a command; what is not given arrives as None."""

    def add(command: Command) -> Command:
        # Decorators apply from the bottom up, so that the help lists the settings in their order.
        for spec in reversed(flag_specs(kind)):
            command = _option(spec)(command)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="TOML file with settings; variables and flags win over it.",
        )(command)

    return add


def given_flags(values: Mapping[str, object]) -> list[str]:
    """The arguments that give another command these values of options; what is None is left out."""
    return [
        _argument(name.replace("_", "-"), value)
        for name, value in values.items()
        if value is not None
    ]


def _argument(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _option(spec: FlagSpec) -> Callable[[Command], Command]:
    # No default for click: an absent flag leaves the value to the environment and the file.
    if spec.type is bool:
        shown = f"  [default: {'on' if spec.default else 'off'}]"
        return click.option(
            f"--{spec.name}/--no-{spec.name}", default=None, help=f"{spec.help}{shown}"
        )
    shown = "" if spec.default is None else f"  [default: {spec.default}]"
    return click.option(f"--{spec.name}", type=spec.type, help=f"{spec.help}{shown}")
