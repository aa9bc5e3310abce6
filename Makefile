# The same commands for people and for CI. `make` lists them.
#   VENV=/path/to/venv   another virtual environment, used as it is if it exists (default .venv)
#   ARGS="..."           options for `make demo`, `make bench`, `make checkpoints` and `make fuzz`
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-seams test-served check seams-doc checkpoints checkpoints-doc fuzz bench clean

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := $(VENV)/bin/python
STAMP := $(VENV)/.sglang-eagle31
ARGS ?=
PYTEST ?= $(PY) -m pytest -m "not gpu"

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

# Seconds after which a ring is ended: far above what it takes on two CPU cores.
UNIT_DEADLINE ?= 300
SEAMS_DEADLINE ?= 240
SERVED_DEADLINE ?= 1800
# SIGTERM first, so that running tests can end their servers.
DEADLINE = timeout --foreground --kill-after=60

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sort | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

setup: $(STAMP) ## create the virtual environment and install everything (once, and when pyproject.toml changes)

$(STAMP): pyproject.toml
	@echo "[setup] $(VENV): installing SGLang and this package (several GB and minutes the first time)"
	@[[ -x $(PY) ]] || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --editable '.[dev]'
	@touch $@
	@echo "[setup] done"

demo: setup ## serve SmolLM2-135M with and without EAGLE31 on this machine and compare token by token
	@$(PY) -m sglang_eagle31 demo $(ARGS)

test: test-unit test-seams test-served ## all test rings that need no GPU
	@echo "[test] all rings passed"

test-unit: setup ## seconds: torch only
	@echo "[test] unit"
	@$(DEADLINE) $(UNIT_DEADLINE) $(PYTEST) tests/unit

test-seams: setup ## seconds: the seams against the installed SGLang and, statically, against other wheels
	@echo "[test] seams"
	@$(DEADLINE) $(SEAMS_DEADLINE) $(PYTEST) tests/seams

test-served: setup ## minutes: real SGLang servers (tests/integration, tests/e2e)
	@echo "[test] integration, e2e"
	@$(DEADLINE) $(SERVED_DEADLINE) $(PYTEST) tests/integration $(wildcard tests/e2e)

check: setup seams-doc checkpoints-doc ## lint, format, types, generated documents
	@echo "[check] ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "[check] mypy"
	@$(PY) -m mypy
	@echo "[check] passed"

seams-doc: setup
	@echo "[check] docs/seams.md is what patches/ says"
	@$(PY) -m sglang_eagle31.patches --check docs/seams.md

checkpoints: setup ## minutes: every kind of head on EAGLE31 and on stock SGLang; writes docs/checkpoints.md
	@OMP_NUM_THREADS=1 $(PY) tests/integration/checkpoint_report.py $(ARGS)

checkpoints-doc: setup
	@echo "[check] docs/checkpoints.md is what docs/results/checkpoints.json says"
	@$(PY) tests/integration/checkpoint_report.py --check

fuzz: setup ## thousands of randomly broken heads, each exact or refused; ARGS="--count 5000 --seed 1"
	@echo "[fuzz] build/fuzz.json"
	@$(PY) tests/fuzz/run.py $(ARGS)

bench: setup ## throughput of EAGLE31, EAGLE3 and no speculation at concurrency 1, 4, 16
	@$(PY) launch/batch_throughput.py $(ARGS)

clean: ## remove build/ and caches (not the virtual environment, not the prepared model)
	@rm -rf build .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
