# `make setup check` is all that a clean clone needs; CONTRIBUTING.md says what CI runs beyond it.

PYTHON ?= python3
BIN := .venv/bin

# Tests start some hundred processes, of which each would compile the package anew without byte code.
export PYTHONDONTWRITEBYTECODE :=

SHARDS := slow-solver slow-kernels slow-vta slow-papers slow-fuzz slow-commands
SOLVER := tests/unit/embedding tests/unit/cost tests/unit/transform
KERNELS := tests/integration tests/unit/codegen tests/unit/targets
VTA := tests/unit/targets/vta
PAPERS := tests/experiments
FUZZ := tests/fuzz
SLOW := $(BIN)/python -m pytest -n 2 -m slow

.PHONY: setup setup-extras check check-skipped lint test slow $(SHARDS) docs docs-check wheel lock

setup:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check

# What tests of optional parts need: the extras, and compilers and disassemblers for GPUs.
setup-extras: setup
	$(BIN)/python -m pip install --quiet --constraint requirements.lock torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint requirements.lock -e ".[extras]"

check: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The tests that are listed in the file SKIPPED, as `pytest --list-skipped` writes it, and the tests and
# examples of modules that are not even collected without PyTorch.
check-skipped:
	PATH="$$(echo $(CURDIR)/$(BIN)/../lib/python3.*/site-packages/nvidia/cu*/bin):$$PATH" \
	    $(BIN)/python -m pytest -n 2 --dist loadfile -rs @$(SKIPPED) cpembed/frontends/torch \
	    cpembed/targets/cuda/baselines

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tools/readability.py --sections cpembed
	$(BIN)/python tools/readability.py benchmarks experiments examples tools docs/_hooks
	$(BIN)/python docs/_hooks/references.py
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

# The documentation site, which needs the extra `docs`. `make docs` serves it while pages are written
# (WITHOUT_API=1 leaves the Python modules out, which take two minutes, and WITHOUT_NOTEBOOKS=1 does not
# execute the notebooks, which compile a network); `make docs-check` builds it as CI
# does: a link or a reference that leads nowhere is an error.
docs:
	CPEMBED_DOCS_WITHOUT_API=$(WITHOUT_API) CPEMBED_DOCS_EXECUTE=$(if $(WITHOUT_NOTEBOOKS),false,true) \
	    $(BIN)/python -m mkdocs serve

docs-check:
	$(BIN)/python -m mkdocs build --strict

wheel:
	$(BIN)/python -m build --wheel --no-isolation

# Needs uv (https://docs.astral.sh/uv); pins every dependency and the test extra, and nothing else.
lock:
	uv pip compile --quiet --extra test --python-version 3.11 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links pyproject.toml --output-file requirements.lock
