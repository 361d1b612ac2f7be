"""The command line `python -m worker_service model import|path`: one line on stdout, the folder."""

import argparse
import sys
from pathlib import Path

from common.config_loader import cache_folder
from common.errors import ModelError, ServiceError
from common.model_folder import BUNDLED_DTYPES, resolve_model
from worker_service.model_import.importer import import_file, import_model


def main(argv: list[str]) -> int:
    """Run `import NAME` or `path NAME`; returns the exit code, an error is one line on stderr."""
    arguments = _parser().parse_args(argv)
    cache = arguments.cache or cache_folder()
    try:
        if arguments.command == "import":
            folder = _import(arguments, cache=cache)
        else:
            folder = resolve_model(arguments.model, cache=cache)
    except ServiceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was imported\n")
        return 130
    sys.stdout.write(f"{folder}\n")
    return 0


def _import(arguments: argparse.Namespace, *, cache: Path) -> Path:
    """Import a file, or a bundled model by name."""
    model, dtype, name = arguments.model, arguments.dtype, arguments.name
    if model.endswith(".gguf"):
        return import_file(Path(model).expanduser(), cache=cache, dtype=dtype, name=name)
    if name is not None:
        raise ModelError("--name goes with a .gguf file; a bundled model has a name")
    return import_model(model, cache=cache, dtype=dtype)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker_service model")
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="import a model into the cache")
    importing.add_argument("--name", help="name of a .gguf file's model (default: the file's)")
    importing.add_argument("--dtype", choices=BUNDLED_DTYPES, default=BUNDLED_DTYPES[0])
    finding = commands.add_parser("path", help="print the folder of a model")
    for command in (importing, finding):
        command.add_argument("model", help="bundled name, or a .gguf file to import")
        command.add_argument("--cache", type=Path, help="folder of imported models")
    return parser
