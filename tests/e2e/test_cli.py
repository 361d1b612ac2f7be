"""The command line: exit codes, one-line errors, and a server from start to end."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer
from stepwire.v1 import inference_pb2_grpc

from common.config_loader import child_environment
from common.errors import WorkerLost
from common.rpc.status import to_metadata, to_status
from coordinator.cli import run
from coordinator.client import Client
from tests.fakes.tiny_checkpoint import write_tiny_llama

STEPWIRE = Path(sys.executable).with_name("stepwire")


@pytest.fixture
def health_address() -> Iterator[str]:
    """HOST:PORT of a server that serves, with a service `asleep` that does not."""
    servicer = HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    servicer.set("asleep", health_pb2.HealthCheckResponse.NOT_SERVING)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(grace=None).wait(timeout=5)


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize(("service", "exit_code"), [("", 0), ("asleep", 4), ("unknown", 3)])
def test_probe_exit_codes(
    health_address: str, capsys, *, dashes: str, service: str, exit_code: int
):
    """Serving is 0, an unknown name 3, not serving 4, in both spellings of the flags."""
    arguments = ["probe", f"{dashes}addr={health_address}", f"{dashes}service", service]
    assert run([*arguments, f"{dashes}tls=false"]) == exit_code
    assert capsys.readouterr().err.count("\n") == 1


def test_probe_without_a_server(capsys):
    """No connection within the timeout is 2."""
    assert run(["probe", "-addr", "127.0.0.1:1", "-connect-timeout", "50ms"]) == 2
    assert "failed to connect to 127.0.0.1:1 within 0.05 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-addr", "x:1", "-rpc-timeout", "soon"],
        ["-addr", "x:1", "-tls-server-name", "x"],
        ["-no"],
    ],
)
def test_probe_with_wrong_arguments(capsys, arguments: list[str]):
    """Wrong arguments are 1, because 2 means no connection."""
    assert run(["probe", *arguments]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_probe_starts_quickly(health_address: str):
    """A probe takes less than half a second of processor time, so that it can run often."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([STEPWIRE, "probe", "-addr", health_address], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


class LosesItsWorker(inference_pb2_grpc.InferenceServicer):
    """A coordinator whose first stage is gone."""

    def Generate(self, request, context):
        """End the answer before its first token."""
        error = WorkerLost("stage 0 lost: exited")
        context.set_trailing_metadata(to_metadata(error))
        context.abort(*to_status(error))


def test_generate_blames_the_worker_and_not_the_coordinator(capsys):
    """A coordinator that answers is not looked for; the line says which worker is lost."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        inference_pb2_grpc.add_InferenceServicer_to_server(LosesItsWorker(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        assert run(["generate", "--address", f"127.0.0.1:{port}", "hello"]) == 1
        server.stop(grace=None).wait(timeout=5)
    assert capsys.readouterr().err == "error: stage 0 lost: exited\n"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["serve"], 2, "No such command 'serve'"),
        (["up", "--block-size", "x"], 2, "--block-size"),
        (["up", "--block-size", "0"], 2, "block_size must be at least 1"),
        (["up", "--workers", "127.0.0.1:1"], 2, "--workers goes with --executor remote"),
        (["up", "--config", "/no/such.toml"], 2, "/no/such.toml"),
        (["coordinator"], 2, "needs --workers"),
        (["coordinator", "--workers", "localhost"], 2, "workers must be HOST:PORT"),
        (["generate", "--prompt", "a", "b"], 2, "given twice"),
        (["generate", " "], 2, "The prompt is empty"),
        (["generate", "--max-tokens", "0", "a"], 2, "--max-tokens"),
        (["model"], 2, "Missing command"),
        (["model", "path", "gpt-5"], 1, "there is no model 'gpt-5'"),
        (["coordinator", "--workers", "127.0.0.1:1", "--model", "gpt-5"], 1, "no model 'gpt-5'"),
        (["generate", "--address", "127.0.0.1:1", "hello"], 1, "stepwire up"),
        (["status", "--address", "127.0.0.1:1"], 1, "stepwire up"),
    ],
)
def test_errors_are_one_line(capsys, *, arguments: list[str], exit_code: int, said: str):
    """Wrong usage or configuration is 2, a failure 1; the one line names what is wrong."""
    assert run(arguments) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_status_of_a_silent_server_is_one_line(capsys, monkeypatch: pytest.MonkeyPatch):
    """Who takes a connection and says nothing, as a stopped coordinator does, is named."""
    monkeypatch.setattr("coordinator.client.UNARY_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run(["status", "--address", address]) == 1
    assert capsys.readouterr().err.startswith(f"error: {address} is silent; is a coordinator")


@pytest.mark.parametrize(
    "command",
    ["up", "coordinator", "worker", "generate", "status", "probe", "model import", "model path"],
)
def test_help_has_examples(capsys, command: str):
    """The help of every command shows how it is used."""
    assert run([*command.split(), "--help"]) == 0
    assert f"  stepwire {command}" in capsys.readouterr().out


def test_version(capsys):
    """The version is that of the installed package."""
    assert run(["--version"]) == 0
    assert re.fullmatch(r"stepwire, version \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_import_of_what_is_there_prints_its_folder(tmp_path: Path, capsys):
    """A model in the cache is neither fetched nor is torch imported."""
    folder = tmp_path / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert run(["model", "import", "smollm2-135m", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_hub_model_that_is_not_there_offline_may_still_come(tmp_path: Path):
    """Who waits for a model waits for a download into a shared folder as well."""
    program = (
        "from pathlib import Path\nfrom common.errors import ModelMissing\n"
        "from common.model_folder import resolve_model\n"
        "try:\n    resolve_model('own/tiny', cache=Path('unused'))\n"
        "except ModelMissing as error:\n    print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**child_environment(), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.startswith("model own/tiny cannot be downloaded")
    assert ended.stdout.count("\n") == 1


def test_import_of_a_folder_takes_it_as_it_is(tmp_path: Path, capsys):
    """Whoever has a model already may say so where a model is imported, as compose files do."""
    assert run(["model", "import", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


@pytest.mark.parametrize("command", [["worker"], ["up"], ["model", "import", "smollm2-135m"]])
def test_what_needs_torch_says_so_without_it(tmp_path: Path, command: list[str]):
    """A coordinator's own installation names what is missing, in one line."""
    program = (
        "import sys\nsys.modules['torch'] = None\nfrom coordinator.cli import run\n"
        f"sys.exit(run({command!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**child_environment(), "STEPWIRE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: workers and imports need PyTorch")
    assert ended.stderr.count("\n") == 1


def test_worker_reports_and_ends(tmp_path: Path):
    """`worker` says in JSON where it listens and exits 0 after SIGTERM."""
    with running(tmp_path, "worker", "--threads", "1") as process:
        assert process.stdout is not None
        assert '"event": "ready"' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_worker_refuses_wrong_settings(tmp_path: Path):
    """A setting that cannot work ends the worker with exit code 2 and one line."""
    command = [STEPWIRE, "worker", "--listen", "nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: listen must be HOST:PORT")


@pytest.mark.parametrize("command", ["worker", "up", "coordinator"])
def test_sigterm_ends_what_is_still_starting(tmp_path: Path, command: str):
    """SIGTERM is taken from the start, also by the first process of a container: the code is 143."""
    settings = tmp_path / "settings.toml"
    os.mkfifo(settings)
    with running(tmp_path, command, "--config", str(settings)) as process, settings.open("w"):
        # It has opened its settings and waits for what will never be written.
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`stepwire ARGUMENTS` with its stdout as a pipe and its log in a file."""
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [STEPWIRE, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def test_up_serves_until_sigterm(tmp_path: Path, capsys):
    """`up` prints topology and addresses, answers `generate` and `probe`, and drains to exit code 0."""
    model = write_tiny_llama(tmp_path / "tiny")
    flags = ["--pp", "2", "--threads", "1", "--grpc-port", "0", "--http-port", "0"]
    with running(tmp_path, "up", "--model", str(model), *flags) as process:
        assert process.stdout is not None
        banner = ""
        while "gRPC" not in banner:
            line = process.stdout.readline()
            assert line, (tmp_path / "log").read_text()
            banner += line
        assert "tiny on 2 workers" in banner
        address = re.findall(r"gRPC\s+(\S+)", banner)[0]

        assert run(["probe", "-addr", address, "-service", "stepwire.v1.Inference"]) == 0
        capsys.readouterr()
        asked = ["generate", "--address", address, "--max-tokens", "8", "--temperature", "0"]
        assert run([*asked, "--ignore-eos", "--stats", "hello"]) == 0
        printed, stats = capsys.readouterr()
        assert "8 generated (ended by: length)" in stats
        with Client(address) as client:
            answer = client.complete("hello", max_tokens=8, temperature=0.0, ignore_eos=True)
        assert run([*asked, "--ignore-eos", "--no-chat", "hello"]) == 0
        assert capsys.readouterr().out == f"{answer.text}\n"
        assert printed.endswith("\n")

        assert run(["status", "--address", address]) == 0
        first, *_ = capsys.readouterr().out.splitlines()
        assert first == "tiny  SERVING"
        assert run(["status", "--address", address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["phase"] == "SERVING"

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
