"""TOML file, environment and flags become one checked configuration; the only reader of os.environ.

Precedence: flags, then STEPWIRE_<FIELD> variables, then the TOML file, then the defaults. Tables of
the file are named like the slices ([model], [cache], [schedule], [cluster], [serve], [worker]). One
file and one environment may serve coordinators and workers alike: what only the other kind knows is
checked by name and otherwise left alone. Knows no setting by itself: all follows from the slices.
"""

import math
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common.config import CoordinatorConfig, WorkerConfig
from common.errors import ConfigError

PREFIX = "STEPWIRE_"
CACHE_VARIABLE = f"{PREFIX}CACHE"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
WORKER_TABLE = "worker"

TRUTH_BY_WORD = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""How a variable spells a boolean, in whatever case."""

Kind = TypeVar("Kind", CoordinatorConfig, WorkerConfig)


class FlagSpec(NamedTuple):
    """What a command-line option is made of; lists are one comma separated text.

    name has dashes and no leading ones ("max-num-seqs"); default None: absent. A boolean one takes no
    value and has an opposite that begins with "no-".
    """

    name: str
    type: type[int] | type[float] | type[str] | type[bool]
    default: int | float | str | bool | None
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One field of a slice: the table it stands in, its name, type, default and help."""

    table: str
    name: str
    type: type[int] | type[float] | type[str] | type[bool] | type[tuple[str, ...]]
    default: Any
    help: str

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Its command-line option."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A value somebody set, and where."""

    value: object
    source: str


def environment() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ


def child_environment() -> dict[str, str]:
    """The environment for a worker process started here, whose settings come as flags alone.

    Without this a STEPWIRE_MODEL meant for the coordinator would override what the coordinator
    tells its workers to load.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or name == CACHE_VARIABLE
    }


def let_waiting_threads_sleep() -> None:
    """Let OpenMP threads that wait for each other sleep soon, unless the environment says otherwise.

    They spin for milliseconds by default, which on a machine with other work takes the core from the
    very thread they wait for: a step was up to fifteen times slower. Counts only before the OpenMP
    library is loaded, so before torch is.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cache_folder() -> Path:
    """The folder of imported models: STEPWIRE_CACHE, or ~/.cache/stepwire."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "stepwire"


def flag_specs(kind: type[CoordinatorConfig] | type[WorkerConfig]) -> list[FlagSpec]:
    """Every setting of a configuration as a command-line option, in the order of its slices."""
    return [_flag_spec(setting) for setting in _settings(kind)]


def load_config(
    kind: type[Kind],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> Kind:
    """Build a configuration from a TOML file, variables and flags (field name to value, None: absent).

    Without `file`, STEPWIRE_CONFIG names it. An empty variable counts as absent. Raises ConfigError
    naming the key, the value and its source when a key is unknown or a value cannot work.
    """
    configured = environ.get(CONFIG_VARIABLE)
    path = file or (Path(configured) if configured else None)
    settings = {setting.name: setting for setting in _settings(kind)}
    given = {
        **_from_file(path, settings),
        **_from_environment(environ, settings),
        **_from_flags(flags, settings),
    }
    slices = {
        table: _make_slice(slice_type, settings, given)
        for table, slice_type in _slice_types(kind).items()
    }
    if kind is WorkerConfig:
        return typing.cast(Kind, slices[WORKER_TABLE])
    return kind(**slices)


def _slice_types(kind: type[Any]) -> dict[str, type[Any]]:
    if kind is WorkerConfig:
        return {WORKER_TABLE: WorkerConfig}
    return {name: hint for name, hint in typing.get_type_hints(kind).items()}


def _settings(kind: type[Any]) -> Iterator[_Setting]:
    for table, slice_type in _slice_types(kind).items():
        hints = typing.get_type_hints(slice_type)
        for entry in fields(slice_type):
            yield _setting(table, entry, hints[entry.name])


def _setting(table: str, entry: Field[Any], hint: Any) -> _Setting:
    alternatives = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    is_tuple = typing.get_origin(hint) is tuple
    plain = hint if is_tuple or not alternatives else alternatives[0]
    return _Setting(
        table=table,
        name=entry.name,
        type=tuple[str, ...] if is_tuple else plain,
        default=entry.default,
        help=entry.metadata["help"],
    )


def _flag_spec(setting: _Setting) -> FlagSpec:
    is_list = setting.type == tuple[str, ...]
    return FlagSpec(
        name=setting.flag.removeprefix("--"),
        type=str if is_list else typing.cast(Any, setting.type),
        default=(",".join(setting.default) or None) if is_list else setting.default,
        help=setting.help,
    )


def _from_file(path: Path | None, settings: Mapping[str, _Setting]) -> dict[str, _Given]:
    if path is None:
        return {}
    known = {(setting.table, setting.name) for setting in _all_settings()}
    given: dict[str, _Given] = {}
    for table, entries in _read_toml(path).items():
        if table not in {known_table for known_table, _ in known}:
            raise ConfigError(f"{path} has the unknown table or key {table!r}")
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {table!r} must be a table: [{table}]")
        for name, value in typing.cast(dict[str, object], entries).items():
            if (table, name) not in known:
                raise ConfigError(f"{path} has the unknown key {name!r} in [{table}]")
            if name in settings and settings[name].table == table:
                given[name] = _Given(value=value, source=f"[{table}] of {path}")
    return given


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _from_environment(
    environ: Mapping[str, str], settings: Mapping[str, _Setting]
) -> dict[str, _Given]:
    known = {setting.variable for setting in _all_settings()} | {CACHE_VARIABLE, CONFIG_VARIABLE}
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise ConfigError(f"unknown environment variable {', '.join(unknown)}; unset it")
    return {
        setting.name: _Given(value=environ[setting.variable], source=setting.variable)
        for setting in settings.values()
        if environ.get(setting.variable)
    }


def _from_flags(flags: Mapping[str, object], settings: Mapping[str, _Setting]) -> dict[str, _Given]:
    given = {name: value for name, value in flags.items() if value is not None}
    unknown = sorted(given.keys() - settings.keys())
    if unknown:
        raise ConfigError(f"unknown option --{unknown[0].replace('_', '-')}")
    return {name: _Given(value=value, source=settings[name].flag) for name, value in given.items()}


def _all_settings() -> Iterator[_Setting]:
    yield from _settings(CoordinatorConfig)
    yield from _settings(WorkerConfig)


def _make_slice(
    slice_type: type[Any], settings: Mapping[str, _Setting], given: Mapping[str, _Given]
) -> Any:
    own = {entry.name: given[entry.name] for entry in fields(slice_type) if entry.name in given}
    values = {name: _convert(settings[name], setting) for name, setting in own.items()}
    try:
        return slice_type(**values)
    except ConfigError as error:
        raise ConfigError(f"{error}{_sources(str(error), own, settings)}") from None


def _sources(message: str, own: Mapping[str, _Given], settings: Mapping[str, _Setting]) -> str:
    """Where the settings a message names were set; a slice that refuses them does not know."""
    named = [
        f"{name} from {setting.source}"
        for name, setting in own.items()
        if re.search(rf"(?<![\w-])({name}|{settings[name].flag})(?![\w-])", message)
    ]
    return f" ({', '.join(named)})" if named else ""


def _convert(setting: _Setting, given: _Given) -> object:
    value = given.value
    if setting.type is int:
        return _to_int(setting, given)
    if setting.type is float:
        return _to_float(setting, given)
    if setting.type is bool:
        return _to_bool(setting, given)
    if setting.type is str:
        if isinstance(value, str):
            return value
        raise _bad(setting, given, "a text")
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple):
        parts = typing.cast("list[object] | tuple[object, ...]", value)
        if all(isinstance(part, str) for part in parts):
            return tuple(parts)
    raise _bad(setting, given, "a list of texts")


def _to_int(setting: _Setting, given: _Given) -> int:
    value = given.value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    raise _bad(setting, given, "an integer")


def _to_float(setting: _Setting, given: _Given) -> float:
    value = given.value
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number):
                return number
    except ValueError:
        pass
    raise _bad(setting, given, "a finite number")


def _to_bool(setting: _Setting, given: _Given) -> bool:
    value = given.value
    truth = TRUTH_BY_WORD.get(value.lower()) if isinstance(value, str) else value
    if isinstance(truth, bool):
        return truth
    raise _bad(setting, given, "true or false")


def _bad(setting: _Setting, given: _Given, wanted: str) -> ConfigError:
    return ConfigError(f"{setting.name} from {given.source} must be {wanted}, not {given.value!r}")
