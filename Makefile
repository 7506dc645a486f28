# `make` alone lists the targets. Everything they install goes into .venv; `rm -rf .venv` undoes it.
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
EXTRAS := --extra local --extra train --extra examples --group build
LOCK_FLAGS ?=
KILLS ?= 200
SEED ?= 0
CHAOS_FLAGS ?=

# Torch's wheels for Linux are CUDA builds. Importing them on a machine without a GPU needs most of
# those libraries and none of these, which are 1.5 GB on disk. `uv pip install -e '.[train]'` into
# the same environment brings them for a GPU.
OMITTED := triton nvidia-cusolver nvidia-cuda-cccl nvidia-nvtx nvidia-nvjitlink \
    cuda-bindings cuda-pathfinder cuda-toolkit
# Only a source distribution, in C, and only one task of reasoning-gym calls it: it is not worth
# asking every machine for a compiler. It is built where that works.
COMPILED := pycosat

COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(LOCK_FLAGS)
COMPILE_ALL := $(COMPILE) pyproject.toml \
    $(foreach name,$(OMITTED) $(COMPILED),--no-emit-package $(name))
# Compiled at once: a run starts many processes, and each would compile torch for itself.
INSTALL := $(UV) pip install --python $(BIN)/python --no-deps --compile-bytecode \
    --build-constraints requirements/demo.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check bench docs chaos install install-test lock

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.demo  ## Install, start a broker and a store, train a small model, show the curve.
	$(BIN)/astra run examples/arithmetic/run.toml

# Two files of tests at a time: many of them wait for a broker, or for torch to be imported.
test: .venv/.test  ## Run every test; they start the servers they need.
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: .venv/.test  ## Lint, format, types, layers and house rules: all that needs no server.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/house_rules

bench: .venv/.test  ## Run every benchmark and print the rows that miss their goal.
	$(BIN)/python benchmarks/run_all.py

chaos: .venv/.test  ## Strike the processes of a run 200 times, then prove that nothing was lost.
	$(BIN)/astra chaos examples/arithmetic/run.toml --kills $(KILLS) --seed $(SEED) --gap 3 \
	    --set rollout.workers=2 --set steps=300 $(CHAOS_FLAGS)

docs: .venv/.test  ## Check every Python and TOML block of the README and docs/.
	$(BIN)/python -m pytest tests/house_rules/test_documents.py

lock: .venv/.uv  ## Resolve requirements/ again; LOCK_FLAGS=--upgrade takes newer versions.
	$(COMPILE) --group installer --output-file requirements/uv.txt
	$(COMPILE_ALL) $(EXTRAS) --extra dev --output-file requirements/test.txt
	$(COMPILE_ALL) $(EXTRAS) --constraints requirements/test.txt --output-file requirements/demo.txt
	echo $(COMPILED) | $(COMPILE) - --output-file requirements/compiled.txt

install: .venv/.demo
install-test: .venv/.test

.venv/.uv: requirements/uv.txt
	@$(PYTHON) astra_stream/local/preflight.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement requirements/uv.txt
	@touch $@

.venv/.demo: requirements/demo.txt requirements/compiled.txt pyproject.toml .venv/.uv
	$(INSTALL) --require-hashes --requirement requirements/demo.txt
	$(INSTALL) --quiet --no-build-isolation --editable .
	@$(INSTALL) --quiet --require-hashes --requirement requirements/compiled.txt 2>/dev/null \
	    || echo "no C compiler for $(COMPILED): reasoning-gym's zebra_puzzles cannot be used"
	@touch $@

.venv/.test: requirements/test.txt .venv/.demo
	$(INSTALL) --require-hashes --requirement requirements/test.txt
	@touch $@
