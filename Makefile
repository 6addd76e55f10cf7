# `make reproduce` and `make test` set up everything they need in .venv, from the pins in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce reproduce-full results test test-all check clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# The bundled models against the sparse twins that come with them.
reproduce: $(READY)
	$(BIN)/gossamer reproduce --quick --out runs/reproduce
	@echo 'This was the quick way, with sparse models made before; make reproduce-full makes them here first.'

# The same, after making the sparse twins: about 20 minutes.
reproduce-full: $(READY)
	$(BIN)/gossamer reproduce --out runs/reproduce-full

# What docs/results.md and docs/controls.md tell of models that others trained: hours. Interrupted, it goes on.
STORIES ?= Xenova/llama2.c-stories15M
RESULTS := runs/results
STORIES_SPARSE := $(RESULTS)/stories15M-sparse
STORIES_TUNED := $(RESULTS)/stories15M-tuned

results: $(RESULTS)/stories15M/report.html
	$(BIN)/python docs/tables.py docs/results.md docs/controls.md

$(STORIES_SPARSE)/sparsify.json: | $(READY)
	$(BIN)/gossamer sparsify $(STORIES) --data self --margin 0.02 --out $(@D) --resume

$(STORIES_TUNED)/sparsify.json: | $(READY)
	$(BIN)/gossamer sparsify $(STORIES) --data self --margin 0.02 --no-penalty --out $(@D) --resume

$(RESULTS)/stories15M/report.html: $(STORIES_SPARSE)/sparsify.json $(STORIES_TUNED)/sparsify.json
	$(BIN)/gossamer compare $(STORIES) $(STORIES_SPARSE) --tuned $(STORIES_TUNED) --task ioi --task ioi-long --out $(@D)

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
