"""Every Triton kernel compiles for every GPU generation we name, without a GPU."""

import subprocess
import sys
from pathlib import Path

from common.config_loader import child_environment

ROOT = Path(__file__).parents[4]


def test_every_kernel_compiles() -> None:
    """Down to a cubin; registers, stack and shared memory are printed beside the result."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gpu.kernel_compiler"],
        cwd=ROOT,
        env=child_environment() | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # noqa: T201 - shown by pytest -s
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for architecture in ("sm_80", "sm_90", "sm_100"):
        assert sum(architecture in line for line in lines) == len(lines) // 3
