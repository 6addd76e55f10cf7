# `make reproduce` and `make test` set up everything they need in .venv, from the pins in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce test test-all check clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# The circuits of the bundled model, whose answer is known: two heads, and two edges a prompt.
reproduce: $(READY)
	$(BIN)/gossamer circuits bundled:induction --task induction --units heads --ranking sentence --out runs/heads --force
	$(BIN)/gossamer circuits bundled:induction --task induction --units heads --ranking random --out runs/random --force
	$(BIN)/gossamer circuits bundled:induction --task induction --units edges --ranking sentence --out runs/edges --force

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
