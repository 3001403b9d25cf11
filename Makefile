# The only commands of this project; `make help` explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run test slow check fix torch bench docs size clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := torch==2.13.0
# The tests share their two cores with the programs they start, so two workers are enough.
WORKERS ?= 2

help:  ## Say what each command does
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("lmlab needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=python3.12, for example." if sys.version_info < (3, 11) else 0)'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: requirements/base.lock pyproject.toml | $(BIN)/python
	@echo "Installing the locked packages (about a minute)"
	@$(PIP) --require-hashes -r requirements/base.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.base
	@echo "Installing the tools for tests and checks"
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

run: $(VENV)/.base  ## Raw text to a served, evaluated model and a report (about ten minutes)
	@$(BIN)/lmlab run experiments/quickstart.py -- --source "$$($(BIN)/python tools/choose_source.py)"

test: $(VENV)/.dev  ## The tests, without the slow ones (under ten minutes)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal

slow: $(VENV)/.dev  ## Repeated kills, browsers, large inputs, the whole quick start (under thirty minutes)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -m slow --timeout 1500

check: $(VENV)/.dev  ## Lint, types, layers, dependencies, spelling, sizes, locks (under 20 s)
	@tools/check.sh

fix: $(VENV)/.dev  ## Format, and repair what the linter can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

torch: $(VENV)/.dev  ## PyTorch for the parity tests (a CPU build; not in the lock)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) $(TORCH)

bench: $(VENV)/.dev  ## Every benchmark, ours beside its peer, one JSON line a figure
	@for file in bench/*.py; do $(BIN)/python $$file --json; done

docs: $(VENV)/.dev  ## Run the code blocks of the README and docs, and check their links
	@$(BIN)/pytest tests/test_docs.py -m "slow or not slow"

size: $(BIN)/python  ## Lines of each package against its budget
	@$(BIN)/python tools/size.py

clean:  ## Remove the environment, the caches and what the quick start built
	@rm -rf $(VENV) .lmlab .pytest_cache .ruff_cache .hypothesis .import_linter_cache build src/*.egg-info
