# `make demo` and `make test` need nothing but Python 3.11+ and its venv module.
PYTHON ?= python3
# The PyPI build for this platform; a CPU-only machine may point TORCH at a CPU wheel.
TORCH ?= torch==2.13.0
BIN := .venv/bin
PROTOS := $(wildcard proto/stepwire/v1/*.proto)

.PHONY: demo test check bench proto clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/stepwire demo

test: .venv/ready
	$(BIN)/python -m pytest

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.binpb

bench: .venv/ready
	$(BIN)/python -m tests.benchmarks

proto: .venv/ready
	rm -rf proto/gen/stepwire
	mkdir -p proto/gen
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto/gen --pyi_out=proto/gen --grpc_python_out=proto/gen $(PROTOS)

clean:
	rm -rf .venv build *.egg-info
