"""SIGTERM before a process has taken its signals, also as the first process of a container."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TAKEN_OVER = """
from common.early_end import end_on_sigterm
print("taken over", flush=True)
end_on_sigterm()
"""
TAKES_OVER = f"""
import os, signal, sys
from common.early_end import hold_sigterm
hold_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.executable, [sys.executable, "-c", {TAKEN_OVER!r}])
"""
WAITS = """
import signal
from common.early_end import end_on_sigterm
end_on_sigterm()
try:
    print("ready", flush=True)
    signal.pause()
finally:
    print("cleaned up", flush=True)
"""


def started(program: str) -> subprocess.Popen[str]:
    """A Python process that runs the program in the checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_sigterm_ends_with_its_code_and_cleans_up():
    """The exit code is what a shell says of a process that died of it, but `finally` has run."""
    with started(WAITS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 143


def test_sigterm_waits_while_a_program_is_replaced():
    """A signal that comes just before another program takes the process over ends that program."""
    with started(TAKES_OVER) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "taken over\n"
    assert process.returncode == 143
