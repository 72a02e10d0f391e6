# `make check` is exactly what CI runs; `make setup check` is all that a clean clone needs.

PYTHON ?= python3
BIN := .venv/bin

SHARDS := slow-solver slow-kernels slow-vta slow-papers slow-fuzz slow-commands
SOLVER := tests/unit/embedding tests/unit/selection tests/unit/transform
KERNELS := tests/integration tests/unit/kernel tests/unit/targets
VTA := tests/unit/targets/vta
PAPERS := tests/experiments
FUZZ := tests/fuzz
SLOW := $(BIN)/python -m pytest -n 2 -m slow

.PHONY: setup check lint test slow $(SHARDS) wheel lock

setup:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check

check: lint
	$(BIN)/python -m pytest -n 2

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --project pyproject.toml
	$(BIN)/lint-imports

test:
	$(BIN)/python -m pytest

# What `make check` leaves out, in shards: CONTRIBUTING.md says what each takes.
slow: $(SHARDS)

slow-solver:
	$(SLOW) $(SOLVER)

slow-kernels:
	$(SLOW) $(KERNELS) --ignore=$(VTA)

slow-vta:
	$(SLOW) $(VTA)

slow-papers:
	$(SLOW) $(PAPERS)

slow-fuzz:
	$(SLOW) $(FUZZ)

# Everything else, so that no slow test is in no shard.
slow-commands:
	$(SLOW) tests cpembed $(addprefix --ignore=,$(SOLVER) $(KERNELS) $(PAPERS) $(FUZZ))

wheel:
	$(BIN)/python -m build --wheel --no-isolation

# Needs uv (https://docs.astral.sh/uv); pins every dependency and the test extra, and nothing else.
lock:
	uv pip compile --quiet --extra test --python-version 3.11 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links pyproject.toml --output-file requirements.lock
