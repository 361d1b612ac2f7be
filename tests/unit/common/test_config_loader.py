"""The loader: precedence, what it refuses, and that the error names key, value and source."""

from pathlib import Path

import pytest

from common.config import CoordinatorConfig, WorkerConfig
from common.config_loader import (
    cache_folder,
    child_environment,
    environment,
    flag_specs,
    load_config,
)
from common.errors import ConfigError


def coordinator(
    *,
    file: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> CoordinatorConfig:
    """A coordinator's configuration from the sources given."""
    return load_config(CoordinatorConfig, file=file, environ=environ or {}, flags=flags or {})


def toml(folder: Path, text: str) -> Path:
    """Write a configuration file."""
    path = folder / "stepwire.toml"
    path.write_text(text)
    return path


def test_nothing_given_gives_the_defaults():
    """Without any source the configuration is the slices' own defaults."""
    assert coordinator() == CoordinatorConfig()


def test_flags_win_over_environment_over_file(tmp_path):
    """Each source overrides the one below it, field by field."""
    path = toml(tmp_path, "[schedule]\nmax_num_seqs = 1\nmax_waiting = 1\npp_cohorts = 1\n")
    config = coordinator(
        file=path,
        environ={"STEPWIRE_MAX_NUM_SEQS": "2", "STEPWIRE_MAX_WAITING": "2"},
        flags={"max_num_seqs": 3, "max_waiting": None},
    )
    schedule = config.schedule
    assert (schedule.max_num_seqs, schedule.max_waiting, schedule.pp_cohorts) == (3, 2, 1)


def test_lists_are_comma_separated_outside_the_file(tmp_path):
    """The same addresses come out of a TOML list, a variable and a flag."""
    path = toml(tmp_path, '[cluster]\nworkers = ["a:1", "b:2"]\n')
    configs = [
        coordinator(file=path),
        coordinator(environ={"STEPWIRE_WORKERS": "a:1, b:2"}),
        coordinator(flags={"workers": "a:1,b:2"}),
    ]
    assert {config.cluster.workers for config in configs} == {("a:1", "b:2")}


def test_variable_names_the_file(tmp_path):
    """STEPWIRE_CONFIG is the file when no file is given."""
    path = toml(tmp_path, "[serve]\ndrain_timeout = 3\n")
    config = coordinator(environ={"STEPWIRE_CONFIG": str(path)})
    assert config.serve.drain_timeout == 3.0


def test_worker_reads_its_own_table(tmp_path):
    """A name both kinds know is taken from the table of the kind that is loaded."""
    path = toml(tmp_path, "[worker]\nthreads = 2\n[cluster]\nthreads = 5\n")
    worker = load_config(WorkerConfig, file=path, environ={}, flags={})
    assert (worker.threads, coordinator(file=path).cluster.threads) == (2, 5)


def test_variables_of_the_other_kind_are_left_alone():
    """One environment serves both processes, even where a value is nonsense to the other."""
    environ = {"STEPWIRE_HTTP_PORT": "no", "STEPWIRE_LISTEN": "127.0.0.2:7001"}
    worker = load_config(WorkerConfig, file=None, environ=environ, flags={})
    assert worker.listen == "127.0.0.2:7001"


def test_empty_variable_counts_as_absent():
    """Compose files pass empty variables; they mean nothing."""
    assert coordinator(environ={"STEPWIRE_PP": ""}).cluster.pp is None


def test_unrelated_variables_are_ignored():
    """Only the prefix is ours; the cache and file variables are no settings."""
    assert coordinator(environ={"HOME": "/x", "STEPWIRE_CACHE": "/y"}) == CoordinatorConfig()


def test_unknown_variable_is_named():
    """A misspelt variable is refused instead of doing nothing."""
    with pytest.raises(ConfigError, match="STEPWIRE_MAX_SEQS"):
        coordinator(environ={"STEPWIRE_MAX_SEQS": "2"})


def test_unknown_option_is_named():
    """A flag without a field is refused by its option name."""
    with pytest.raises(ConfigError, match="--max-seqs"):
        coordinator(flags={"max_seqs": 2})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[schedule]\nmax_seqs = 1\n", r"stepwire.toml.*'max_seqs' in \[schedule\]"),
        ("[scheduler]\nmax_num_seqs = 1\n", r"stepwire.toml.*'scheduler'"),
        ("max_num_seqs = 1\n", r"stepwire.toml.*'max_num_seqs'"),
        ("schedule = 1\n", r"stepwire.toml.*'schedule' must be a table"),
        ("[schedule\n", r"stepwire.toml is not TOML.*line 1"),
        ("[worker]\nhttp_port = 1\n", r"'http_port' in \[worker\]"),
    ],
)
def test_unknown_key_of_the_file_is_named(tmp_path, text, named):
    """What the file holds and no slice knows is named with file and table."""
    with pytest.raises(ConfigError, match=named):
        coordinator(file=toml(tmp_path, text))


def test_missing_file_is_named(tmp_path):
    """A file that is not there is an error, not an empty file."""
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        coordinator(file=tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("environ", "flags", "named"),
    [
        ({"STEPWIRE_PP": "two"}, {}, "pp from STEPWIRE_PP must be an integer, not 'two'"),
        ({}, {"pp": True}, "pp from --pp must be an integer, not True"),
        ({"STEPWIRE_DRAIN_TIMEOUT": "nan"}, {}, "drain_timeout from .* finite number, not 'nan'"),
        ({}, {"model": 3}, "model from --model must be a text, not 3"),
        ({"STEPWIRE_PREFIX_CACHE": "perhaps"}, {}, "prefix_cache from .* true or false, not 'perh"),
        ({}, {"prefix_cache": 1}, "prefix_cache from --prefix-cache must be true or false, not 1"),
        ({}, {"workers": [1]}, r"workers from --workers must be a list of texts, not \[1\]"),
    ],
)
def test_value_of_the_wrong_type_names_its_source(environ, flags, named):
    """The message holds key, source and value."""
    with pytest.raises(ConfigError, match=named):
        coordinator(environ=environ, flags=flags)


@pytest.mark.parametrize(
    ("text", "truth"), [("false", False), ("No", False), ("0", False), ("TRUE", True), ("1", True)]
)
def test_variable_spells_a_boolean(text: str, truth: bool):  # noqa: FBT001 - the value under test
    """Yes and no, true and false, 1 and 0, in whatever case."""
    assert coordinator(environ={"STEPWIRE_PREFIX_CACHE": text}).cache.prefix_cache is truth


def test_file_and_flag_hold_a_boolean(tmp_path):
    """A TOML boolean counts, and a flag wins over it."""
    file = toml(tmp_path, "[cache]\nprefix_cache = false\n")
    assert coordinator(file=file).cache.prefix_cache is False
    assert coordinator(file=file, flags={"prefix_cache": True}).cache.prefix_cache is True


def test_value_a_slice_refuses_names_its_source():
    """The slice says what is wrong, the loader adds where it was set."""
    with pytest.raises(ConfigError, match=r"at least 1, not 0 \(pp from STEPWIRE_PP\)"):
        coordinator(environ={"STEPWIRE_PP": "0"})


def test_settings_that_contradict_each_other_name_both_sources():
    """A check over two settings names where each came from."""
    with pytest.raises(ConfigError, match=r"workers from STEPWIRE_WORKERS, pp from --pp"):
        coordinator(environ={"STEPWIRE_WORKERS": "a:1"}, flags={"pp": 3})


def test_every_setting_has_an_option_with_help():
    """Options carry dashed names, plain types, the slice's defaults and a help text."""
    specs = {spec.name: spec for spec in flag_specs(CoordinatorConfig)}
    assert specs["max-num-seqs"][1:3] == (int, 64)
    assert specs["workers"][1:3] == (str, None)
    assert specs["gpu-memory-utilization"][1:3] == (float, 0.9)
    assert all(spec.help for spec in specs.values())


@pytest.mark.parametrize("kind", [CoordinatorConfig, WorkerConfig])
def test_option_defaults_are_the_configuration_defaults(kind):
    """Passing every option its default changes nothing."""
    flags = {spec.name.replace("-", "_"): spec.default for spec in flag_specs(kind)}
    assert load_config(kind, file=None, environ={}, flags=flags) == kind()


def test_child_environment_holds_no_setting(monkeypatch):
    """A spawned worker is told by flags; only the cache folder and foreign variables pass."""
    monkeypatch.setenv("STEPWIRE_MODEL", "other")
    monkeypatch.setenv("STEPWIRE_CONFIG", "/x.toml")
    monkeypatch.setenv("STEPWIRE_CACHE", "/cache")
    child = child_environment()
    assert {name for name in child if name.startswith("STEPWIRE_")} == {"STEPWIRE_CACHE"}
    assert child["PATH"] == environment()["PATH"]


def test_cache_folder_follows_its_variable(monkeypatch, tmp_path):
    """STEPWIRE_CACHE moves the folder; without it the user's cache is used."""
    monkeypatch.setenv("STEPWIRE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("STEPWIRE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "stepwire"
