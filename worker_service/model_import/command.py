"""The command line `python -m worker_service model import|path`: one line on stdout, the folder."""

import argparse
import sys
from pathlib import Path

from common.config_loader import cache_folder
from common.errors import ServiceError
from common.model_folder import BUNDLED_DTYPES, resolve_model
from worker_service.model_import.importer import import_model


def main(argv: list[str]) -> int:
    """Run `import NAME` or `path NAME`; returns the exit code, an error is one line on stderr."""
    arguments = _parser().parse_args(argv)
    cache = arguments.cache or cache_folder()
    try:
        if arguments.command == "import":
            folder = import_model(arguments.name, cache=cache, dtype=arguments.dtype)
        else:
            folder = resolve_model(arguments.name, cache=cache)
    except ServiceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was imported\n")
        return 130
    sys.stdout.write(f"{folder}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker_service model")
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="import a bundled model into the cache")
    importing.add_argument("--dtype", choices=BUNDLED_DTYPES, default=BUNDLED_DTYPES[0])
    finding = commands.add_parser("path", help="print the folder of a model")
    for command in (importing, finding):
        command.add_argument("name")
        command.add_argument("--cache", type=Path, help="folder of imported models")
    return parser
