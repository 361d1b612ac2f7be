# `make demo` and `make test` need nothing but Python 3.11 or newer with its venv module.
PYTHON ?= python3
# A machine without a GPU may save gigabytes with a CPU build, e.g. TORCH=/path/to/torch-2.13.0+cpu-....whl
TORCH ?= torch==2.13.0
BIN := .venv/bin
PROTOS := $(wildcard proto/stepwire/v1/*.proto)
KERNELS := $(wildcard worker_service/kernels/cpu/*)

.PHONY: demo test test-external check bench proto clean

# The install compiles the CPU kernels; without a compiler torch computes what they would.
.venv/ready: pyproject.toml $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed; set PYTHON=python3.11")'
	@echo "installing into .venv, once; PyTorch is a large download"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# A question answered by two workers and a coordinator.
demo: .venv/ready
	@$(BIN)/python -m deploy.demo

test: .venv/ready
	$(BIN)/python -m pytest

# Tests that need programs of the system: chromium, and promtool of prometheus.
test-external: .venv/ready
	@for program in chromium promtool; do \
	  command -v $$program >/dev/null || { echo "error: $$program is missing; apt-get install chromium prometheus"; exit 1; }; \
	done
	$(BIN)/python -m pytest -m external

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.binpb

bench: .venv/ready
	$(BIN)/python -m tests.benchmarks

# Generated code is committed; run this after a change of a .proto file.
proto: .venv/ready
	rm -rf proto/gen/stepwire
	mkdir -p proto/gen
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto/gen --pyi_out=proto/gen --grpc_python_out=proto/gen $(PROTOS)

clean:
	rm -rf .venv build *.egg-info worker_service/kernels/*.so
