# `make reproduce` and `make test` set up everything they need in .venv, from the pins in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce reproduce-full test test-all check clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# Circuits of the bundled models and the sparse twins that come with them: minutes. `make reproduce-full` trains the twins.
reproduce: $(READY)
	$(BIN)/gossamer reproduce --quick --out runs/reproduce
	@echo 'These sparse models came with the package: make reproduce-full post-trains them here (about 20 minutes).'

reproduce-full: $(READY)
	$(BIN)/gossamer reproduce --out runs/reproduce-full

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -m 'not slow'

test-all: check
	$(BIN)/python -m pytest

clean:
	rm -rf .venv runs
