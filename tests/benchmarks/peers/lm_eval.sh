#!/bin/sh
# Makes a venv with lm-eval and its own engine, the peer of lm_eval_agreement.py:
# sh tests/benchmarks/peers/lm_eval.sh
set -eu

VERSION=0.4.13
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
folder=${STEPWIRE_CACHE:-$HOME/.cache/stepwire}/peers/lm_eval

"$PYTHON" -m venv "$folder"
pip="$folder/bin/pip --quiet --disable-pip-version-check"
$pip install "$TORCH"
$pip install "lm-eval[api,hf]==$VERSION" "transformers>=5"
