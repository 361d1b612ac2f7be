"""Command line of the worker process: `python -m worker_service [worker] FLAGS`, or `model ...`.

The one line on stdout is JSON and says where the worker is reached once it is; the log goes to
stderr. Exit codes: 0 asked to end, 1 the device was lost, 2 a flag or setting cannot work, 70 the
device is stuck, 143 asked to end before it was ready.
"""

import argparse
import asyncio
import json
import sys
from argparse import BooleanOptionalAction
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import WorkerConfig
from common.config_loader import environment, flag_specs, load_config
from common.early_end import end_on_sigterm
from common.errors import ConfigError
from common.logs import configure_logging

if TYPE_CHECKING:
    from worker_service.app import Ready
    from worker_service.runner.model_runner import ModelRunner

CONFIG_ERROR_EXIT = 2


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    match arguments:
        case ["model", *rest]:
            from worker_service.model_import.command import main as run_model_command

            return run_model_command(rest)
        case ["worker", *rest]:
            return run_worker_command(rest)
        case _:
            return run_worker_command(arguments)


def run_worker_command(
    arguments: list[str], *, make_runner: "Callable[..., ModelRunner] | None" = None
) -> int:
    """Serve as a worker until told to end, on a ModelRunner or what stands in its place."""
    flags = vars(_parser().parse_args(arguments))
    file, exit_with_stdin = flags.pop("config"), flags.pop("exit_with_stdin")
    try:
        config = load_config(WorkerConfig, file=file, environ=environment(), flags=flags)
        configure_logging("worker", level=config.log_level, spelling=config.log_format)
        # Imported here because it brings torch, which a wrong flag or --help need not wait for.
        from worker_service.app import run_worker
        from worker_service.runner.model_runner import ModelRunner

        return asyncio.run(
            run_worker(
                config,
                exit_with_stdin=exit_with_stdin,
                announce=_print_ready,
                make_runner=make_runner or ModelRunner,
            )
        )
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return CONFIG_ERROR_EXIT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker_service worker",
        description="Serve one rank of a worker group over gRPC.",
    )
    for spec in flag_specs(WorkerConfig):
        # No argparse default: an absent flag leaves the value to environment and file.
        if spec.type is bool:
            parser.add_argument(
                f"--{spec.name}", action=BooleanOptionalAction, default=None, help=spec.help
            )
            continue
        shown = "" if spec.default is None else f" (default: {spec.default})"
        parser.add_argument(f"--{spec.name}", type=spec.type, help=spec.help + shown)
    parser.add_argument("--config", type=Path, help="TOML file with a [worker] table")
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when standard input is closed and no new coordinator claims the worker in 8 s",
    )
    return parser


def _print_ready(ready: "Ready") -> None:
    line = {
        "event": "ready",
        "address": ready.address,
        "tensor_endpoint": ready.tensor_endpoint,
        "incarnation": ready.incarnation,
    }
    if ready.metrics_address:
        line["metrics_address"] = ready.metrics_address
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))
