"""The command line `stepwire`: every command, its options and examples, and errors in one line.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 a newer coordinator has taken the
workers over; `probe` has those of grpc_health_probe. Commands import what they need when they run, so that `probe` starts quickly;
`worker` and `model import` run `python -m worker_service`, so that torch is never imported here.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from common.config import CoordinatorConfig, WorkerConfig
from common.config_loader import cache_folder, environment, load_config
from common.early_end import end_on_sigterm, hold_sigterm
from common.errors import ConfigError, Fenced, ServiceError
from common.model_folder import (
    BUNDLED_DTYPES,
    BUNDLED_MODELS,
    bundled_folder,
    is_imported,
    resolve_model,
)
from coordinator.client_commands import chat, generate, probe, status
from coordinator.options import config_options, given_flags
from coordinator.top_command import top

if TYPE_CHECKING:
    from coordinator.app import Serving

FAILED, WRONG_PROBE, WRONG_USAGE, FENCED, INTERRUPTED = 1, 1, 2, 3, 130

CACHE_OPTION = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of imported models  [default: STEPWIRE_CACHE or ~/.cache/stepwire]",
)


def main() -> NoReturn:
    """Run the console script."""
    end_on_sigterm()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        return stepwire.main(args=arguments, prog_name="stepwire", standalone_mode=False) or 0
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "stepwire"
        return _fail(f"{error.format_message()} See `{command} --help`.", _usage_exit(error))
    except ConfigError as error:
        return _fail(str(error), WRONG_USAGE)
    except Fenced as error:
        return _fail(str(error), FENCED)
    except (click.ClickException, ServiceError) as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        # Whoever read stdout left; the interpreter must not stumble over it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepwire", prog_name="stepwire")
@click.pass_context
def stepwire(context: click.Context) -> None:
    """Serve large language models as gRPC microservices.

    \b
    stepwire up                                     serve the bundled model here
    stepwire generate "What is the capital of France?"
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@stepwire.command()
@config_options(CoordinatorConfig)
def up(**flags: Any) -> int:
    """Serve a model on this machine: a coordinator that starts its own workers.

    A bundled model is imported first when it is not there yet. Runs until SIGTERM or Ctrl-C, which
    let running requests finish.

    \b
    Examples:
      stepwire up
      stepwire up --pp 2 --http-port 8080
      stepwire up --model ./my-llama --dtype float32 --max-model-len 4096
      stepwire up --config stepwire.toml
    """
    config = _coordinator_config(flags, default_executor="local")
    if config.cluster.executor_kind != "remote":
        _require_torch()
    if (exit_code := _import_when_missing(config.model.model)) != 0:
        return exit_code
    return _serve(config)


@stepwire.command()
@config_options(CoordinatorConfig)
def coordinator(**flags: Any) -> int:
    """Serve a model on workers that run elsewhere, given in the order of their stages.

    \b
    Examples:
      stepwire coordinator --workers 10.0.0.1:50061,10.0.0.2:50061
      stepwire coordinator --workers 127.0.0.1:50061 --grpc-port 0 --http-port -1
    """
    return _serve(_coordinator_config(flags, default_executor="remote"))


@stepwire.command()
@config_options(WorkerConfig)
def worker(**flags: Any) -> NoReturn:
    """Serve one pipeline stage; what it computes comes from the coordinator.

    The first line on stdout is JSON and says where it listens.

    \b
    Examples:
      stepwire worker --listen 127.0.0.1:50061
      stepwire worker --listen 10.0.0.1:50061 --allow-plaintext --device cuda:0
    """
    _run_worker_service("worker", *given_flags(flags))


@stepwire.group(no_args_is_help=False)
def model() -> None:
    """Import bundled models and find model folders."""


@model.command("import")
@click.argument("model")
@click.option(
    "--dtype",
    type=click.Choice(BUNDLED_DTYPES),
    default=BUNDLED_DTYPES[0],
    show_default=True,
    help="Type of the weights.",
)
@click.option("--name", help="Name of a .gguf file's model  [default: the file's]")
@CACHE_OPTION
def import_model(model: str, dtype: str, name: str | None, cache: Path | None) -> None:
    """Import a bundled model (smollm2-135m, gemma3-270m), a .gguf file or a hub id, once; the last line is its folder.

    A folder is taken as it is.

    \b
    Examples:
      stepwire model import smollm2-135m
      stepwire model import smollm2-135m --dtype float32 --cache /srv/models
      stepwire model import ./my-llama.Q4_K_M.gguf && stepwire up --model my-llama.Q4_K_M
    """
    cache = cache or cache_folder()
    folder = bundled_folder(model, cache=cache, dtype=dtype)
    if model in BUNDLED_MODELS and name is None and is_imported(folder):
        click.echo(str(folder))
        return
    if model not in BUNDLED_MODELS and name is None and not model.endswith(".gguf"):
        # A folder is there, and a hub id is downloaded by being looked for.
        click.echo(str(resolve_model(model, cache=cache)))
        return
    given = [f"--dtype={dtype}", f"--cache={cache}", *([f"--name={name}"] if name else [])]
    _run_worker_service("model", "import", model, *given)


@model.command("path")
@click.argument("name")
@CACHE_OPTION
def model_path(name: str, cache: Path | None) -> None:
    """Print the folder of a bundled name, a folder or a hub id.

    \b
    Examples:
      stepwire model path smollm2-135m
      stepwire model path HuggingFaceTB/SmolLM2-360M-Instruct
    """
    click.echo(str(resolve_model(name, cache=cache or cache_folder())))


stepwire.add_command(generate)
stepwire.add_command(chat)
stepwire.add_command(probe)
stepwire.add_command(status)
stepwire.add_command(top)


def _coordinator_config(flags: dict[str, Any], *, default_executor: str) -> CoordinatorConfig:
    file = flags.pop("config")
    config = load_config(CoordinatorConfig, file=file, environ=environment(), flags=flags)
    if config.cluster.executor is not None:
        return config
    return replace(config, cluster=replace(config.cluster, executor=default_executor))


def _serve(config: CoordinatorConfig) -> int:
    from common.logs import configure_logging
    from coordinator.app import run_coordinator

    configure_logging("coordinator", level=config.serve.log_level, spelling=config.serve.log_format)
    return asyncio.run(run_coordinator(config, ready=_announce))


def _announce(serving: "Serving") -> None:
    from coordinator.banner import topology_lines

    for line in topology_lines(serving.model, serving.workers):
        click.echo(line)
    click.echo(f"  gRPC {serving.grpc_address}")
    if serving.http_url is not None:
        click.echo(f"  HTTP {serving.http_url}/v1")
        click.echo(f"  console {serving.http_url}")


def _import_when_missing(name: str) -> int:
    """Import a bundled model in a process of its own; returns that process's exit code."""
    cache = cache_folder()
    if name not in BUNDLED_MODELS or is_imported(bundled_folder(name, cache=cache)):
        return 0
    command = _worker_service("model", "import", name, f"--cache={cache}")
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def _run_worker_service(*arguments: str) -> NoReturn:
    """Become `python -m worker_service`, so that signals and exit code are its own."""
    _require_torch()
    sys.stdout.flush()
    hold_sigterm()
    os.execv(sys.executable, _worker_service(*arguments))


def _require_torch() -> None:
    """Refuse what a coordinator's own installation cannot do."""
    if find_spec("torch") is None:
        raise click.ClickException(
            "workers and imports need PyTorch, which is not installed here: "
            "pip install 'stepwire[worker]', or use the image stepwire-worker"
        )


def _worker_service(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "worker_service", *arguments]


def _usage_exit(error: click.UsageError) -> int:
    """Probes have an exit code of their own for wrong usage, since 2 means no connection there."""
    is_probe = error.ctx is not None and error.ctx.command is probe
    return WRONG_PROBE if is_probe else WRONG_USAGE


def _fail(message: str, exit_code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return exit_code


if __name__ == "__main__":
    main()
