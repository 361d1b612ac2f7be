"""The contract: generated code is fresh, lint is clean, and nothing the baseline holds was broken."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
BUF = Path(sys.executable).parent / "buf"


def generated(folder: Path) -> dict[str, bytes]:
    """Contents of the generated files under a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".pyi")
    }


def buf(*arguments: str) -> str:
    """Run buf at the root of the repository and return what it complains of."""
    done = subprocess.run(
        [BUF, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_generated_code_is_fresh(tmp_path):
    """Generating anew gives the committed code byte for byte, and not a file more or less."""
    protos = sorted(str(path) for path in (PROTO / "stepwire").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *protos]
    subprocess.run(command, check=True, timeout=60)
    assert generated(PROTO / "gen") == generated(tmp_path)


def test_lint():
    """`buf lint` has nothing to say."""
    assert buf("lint") == ""


def test_nothing_is_broken():
    """Against the committed baseline no field, number or name was removed or changed."""
    assert buf("breaking", "--against", "proto/baseline.binpb") == ""


def test_baseline_would_notice(tmp_path):
    """The baseline check is able to fail: a removed field is reported."""
    copy = tmp_path / "proto" / "stepwire" / "v1"
    copy.mkdir(parents=True)
    for source in (PROTO / "stepwire" / "v1").glob("*.proto"):
        text = source.read_text()
        (copy / source.name).write_text(text.replace("  uint64 base_step = 4;\n", ""))
    (tmp_path / "buf.yaml").write_text((ROOT / "buf.yaml").read_text())
    complaint = buf("breaking", str(tmp_path), "--against", "proto/baseline.binpb")
    assert 'Previously present field "4" with name "base_step"' in complaint


def test_baseline_knows_every_file():
    """No contract file is outside the baseline's protection."""
    baseline = (PROTO / "baseline.binpb").read_bytes()
    missing = [
        path.name
        for path in (PROTO / "stepwire" / "v1").glob("*.proto")
        if f"stepwire/v1/{path.name}".encode() not in baseline
    ]
    assert not missing


def test_proto_is_no_package():
    """`proto/` has no __init__.py, which would shadow the `proto` module of proto-plus."""
    assert not (PROTO / "__init__.py").exists()


@pytest.mark.parametrize(
    "path", sorted((PROTO / "stepwire").rglob("*.proto")), ids=lambda p: p.name
)
def test_every_field_has_a_comment(path):
    """A comment stands above every field, value, message, enum and call."""
    before = ""
    for line in map(str.strip, path.read_text().splitlines()):
        is_declared = line.startswith(("message ", "enum ", "service ", "rpc ", "oneof ")) or (
            line.endswith(";") and " = " in line and not line.startswith(("//", "syntax"))
        )
        assert not is_declared or before.startswith("//"), f"no comment above {line!r}"
        before = line
