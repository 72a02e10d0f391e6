# `make check` is exactly what CI runs; `make setup check` is all that a clean clone needs.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup check lint test slow wheel lock

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

slow:
	$(BIN)/python -m pytest -m slow

wheel:
	$(BIN)/python -m build --wheel --no-isolation

# Needs uv (https://docs.astral.sh/uv); pins every dependency and the test extra, and nothing else.
lock:
	uv pip compile --quiet --extra test --python-version 3.11 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links pyproject.toml --output-file requirements.lock
