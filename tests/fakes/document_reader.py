"""Someone who reads a document and runs its code blocks, one after the other, and compares what they print.

A machine is a loopback address: that of this reader, and one for each host that a document names.
Ports are those of the document. `stepwire` is the installed command; its clients ask this reader's
coordinator instead of the one at 127.0.0.1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import kubernetes_validate

from common.config import CoordinatorConfig
from common.config_loader import cache_folder, environment, load_config
from coordinator.cli import stepwire
from tests.fakes import kustomization
from tests.fakes.code_blocks import THIS_MACHINE, CodeBlock, output_pattern
from tests.fakes.grpcurl_commands import check_grpcurl
from tests.fakes.local_container import loopback_address

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "kubernetes" / "base"
BIN = Path(sys.executable).parent
HOSTS = (THIS_MACHINE, "node-1", "node-2", "node-3")

RUN_SECONDS = 60.0
READY_SECONDS = 60.0
END_SECONDS = 20.0
POLL_SECONDS = 0.05

PRELUDE = """set -euo pipefail
stepwire() {{
  case "$1" in
    generate|chat|status|top) command stepwire "$1" --address {address}:50050 "${{@:2}}" ;;
    *) command stepwire "$@" ;;
  esac
}}
"""


class Background:
    """A block that goes on running on a machine, in a process group of its own."""

    def __init__(self, block: CodeBlock, command: list[str], *, address: str, folder: Path) -> None:
        self.block, self.address = block, address
        self._output = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        with self._output.open("w") as file:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=_variables(folder, address=address),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_printed(self, pattern: re.Pattern[str]) -> None:
        """Wait until the output holds the pattern; fails when the process ends or takes too long."""
        pause = threading.Event()
        for _ in range(int(READY_SECONDS / POLL_SECONDS)):
            if pattern.search(text := self._output.read_text()):
                return
            assert self._process.poll() is None, f"{self.block} ended instead: {text}"
            pause.wait(POLL_SECONDS)
        raise AssertionError(f"{self.block} does not print {pattern}: {text}")

    def end(self) -> None:
        """End it as Ctrl-C does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise AssertionError(f"{self.block} does not end after Ctrl-C") from None


class DocumentReader:
    """Runs blocks in a folder of its own; what they start is ended when it leaves.

    shared, when given, runs already and is what a background block of the same text starts, so that
    documents which begin alike need not begin anew.
    """

    def __init__(self, folder: Path, *, shared: Background | None = None) -> None:
        self._folder, self._shared = folder, shared
        self._address = loopback_address(HOSTS.index(THIS_MACHINE))
        self._background: list[Background] = []
        self._last_output = ""
        self._last_started: Background | None = None
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "deploy").symlink_to(ROOT / "deploy")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_background()

    def read(self, block: CodeBlock) -> None:
        """Do with a block what its first line says; fails when it is not as the document tells."""
        match block.mode:
            case "run" | "fails":
                self._run(block)
            case "background" | "restart":
                if block.mode == "restart":
                    self._end_background()
                self._start(block)
            case "output":
                self._compare(block)
            case "settings":
                self._load_settings(block)
            case "kustomization":
                self._build(block)
            case "syntax":
                _parse(block)

    def _run(self, block: CodeBlock) -> None:
        ended = subprocess.run(
            self._command(block),
            cwd=self._folder,
            env=_variables(self._folder, address=self._address_of(block.host)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        self._last_output, self._last_started = ended.stdout, None
        has_failed = ended.returncode != 0
        assert has_failed == (block.mode == "fails"), (
            f"{block} ended with {ended.returncode}: {ended.stdout}"
        )

    def _start(self, block: CodeBlock) -> None:
        if self._shared is not None and block.text == self._shared.block.text:
            self._address, self._last_started = self._shared.address, self._shared
            return
        self._last_started = Background(
            block,
            self._command(block),
            address=self._address_of(block.host),
            folder=self._folder,
        )
        self._background.append(self._last_started)

    def _compare(self, block: CodeBlock) -> None:
        """Wait for the output of what runs in the background; look at once at what has ended."""
        # What a message says of 127.0.0.1 stands there whatever the addresses of this reader are.
        here, as_written = self._localized(block.text, THIS_MACHINE), block.text
        pattern = re.compile(f"{output_pattern(here).pattern}|{output_pattern(as_written).pattern}")
        if self._last_started is not None:
            self._last_started.wait_until_printed(pattern)
        else:
            assert pattern.search(self._last_output), f"{block} is not printed: {self._last_output}"

    def _load_settings(self, block: CodeBlock) -> None:
        file = self._folder / "stepwire.toml"
        file.write_text(block.text)
        load_config(CoordinatorConfig, file=file, environ={}, flags={})

    def _build(self, block: CodeBlock) -> None:
        """Write an overlay of ours, with the settings of the base beside it, and build it."""
        folder = self._folder / "my-stepwire"
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(block.text)
        (folder / "stepwire.toml").write_bytes((BASE / "stepwire.toml").read_bytes())
        for each in kustomization.build(folder):
            kubernetes_validate.validate(each, kustomization.NEWEST, strict=True)

    def _end_background(self) -> None:
        """End what this reader started, the last one first, and leave what it shares."""
        self._address = loopback_address(HOSTS.index(THIS_MACHINE))
        self._last_started = None
        while self._background:
            self._background.pop().end()

    def _command(self, block: CodeBlock) -> list[str]:
        text = self._localized(block.text, block.host)
        if block.language == "python":
            return [sys.executable, "-c", text]
        return ["bash", "-c", PRELUDE.format(address=self._address_of(block.host)) + text]

    def _localized(self, text: str, host: str) -> str:
        """The text with an address of this machine for every host."""
        places = {name: self._address_of(name) for name in HOSTS if name}
        places |= dict.fromkeys(("127.0.0.1", "0.0.0.0", "localhost"), self._address_of(host))
        found = "|".join(re.escape(place) for place in places)
        return re.sub(rf"\b({found})\b", lambda match: places[match[0]], text)

    def _address_of(self, host: str) -> str:
        return loopback_address(HOSTS.index(host)) if host else self._address


def shared_background(block: CodeBlock, folder: Path) -> Background:
    """Start a block on an address of its own, for readers to share."""
    address = loopback_address(len(HOSTS))
    command = ["bash", "-c", PRELUDE.format(address=address) + block.text]
    return Background(block, command, address=address, folder=folder)


def _variables(folder: Path, *, address: str) -> dict[str, str]:
    """No setting of whoever runs the tests but where models are."""
    return {
        "PATH": f"{BIN}:{environment()['PATH']}",
        "HOME": str(folder),
        "STEPWIRE_CACHE": str(cache_folder()),
        "STEPWIRE_HTTP_HOST": address,
        "STEPWIRE_KV_CACHE_BYTES": str(1 << 28),
        "PYTHONUNBUFFERED": "1",
    }


def _parse(block: CodeBlock) -> None:
    if block.language == "python":
        compile(block.text, str(block), "exec")
        return
    parsed = subprocess.run(
        ["bash", "-n", "-c", block.text], capture_output=True, text=True, check=False
    )
    assert parsed.returncode == 0, f"{block}: {parsed.stderr}"
    commands = re.findall(r"^ *stepwire (\w+)", block.text, re.MULTILINE)
    unknown = set(commands) - stepwire.commands.keys()
    assert not unknown, f"{block}: stepwire has no command {unknown}"
    check_grpcurl(block.text)
