"""A container of a deployment as a process of this machine, on a loopback address of its own.

So the ports of the deployment are used as they stand there; only names of hosts and mounted folders
become those of this machine. Knows nothing of images.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.config_loader import environment

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EVERY_INTERFACE = "0.0.0.0"
EXIT_SECONDS = 20.0


def loopback_address(index: int) -> str:
    """An address of this process, of eight; no other process is given it. 127.0.0.0/8 is all loopback."""
    value = (os.getpid() << 3) + index
    return f"127.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


class LocalContainer:
    """A command that runs with the given variables alone; its log goes to a file.

    places: what hosts and mounted folders of the deployment are called here.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        address: str,
        places: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> None:
        self.address = address
        self._places = {**places, EVERY_INTERFACE: address}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            self._localized(command),
            cwd=ROOT,
            env={"PATH": environment()["PATH"], **variables},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: Sequence[str], *, seconds: float) -> int:
        """Run a command beside it, where 127.0.0.1 is the container itself; its exit code."""
        inside = [argument.replace("127.0.0.1", self.address) for argument in command]
        ended = subprocess.run(
            self._localized(inside), cwd=ROOT, capture_output=True, timeout=seconds, check=False
        )
        return ended.returncode

    def log(self) -> str:
        """What the process has written so far."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """Kill the process if it still runs, and free what it leaves."""
        self.process.kill()
        self.process.wait(EXIT_SECONDS)
        self._log.close()

    def _localized(self, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        return [str(BIN / program), *(localized(argument, self._places) for argument in arguments)]


def localized(text: str, places: Mapping[str, str]) -> str:
    """The text with what its places are called here."""
    found = "|".join(re.escape(place) for place in places)
    return re.sub(rf"(?<![\w/])({found})\b", lambda match: places[match[0]], text)
