# The same commands for people and for CI. `make` lists them.
#   VENV=/path/to/venv   another virtual environment, used as it is if it exists (default .venv)
#   ARGS="..."           options for `make demo`, `make bench`, `make checkpoints` and `make fuzz`
#   SEED=1               other draws for `make soak` (default 0)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-unit test-seams test-rollback test-served check seams-doc checkpoints checkpoints-doc features features-doc results results-doc fuzz soak bench bench-doc clean

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := $(VENV)/bin/python
STAMP := $(VENV)/.sglang-eagle31
ARGS ?=
SEED ?= 0
BENCH := --out docs/results/bench.json --document docs/performance.md

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

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

test: setup ## minutes: unit tests, the seams into SGLang, rollback, and one real server of each kind
	@$(PY) tests/rings.py

test-all: setup ## half an hour and more: all of that with every head, feature and server; what CI runs
	@$(PY) tests/rings.py --all

test-unit test-seams test-rollback test-served: test-%: setup
	@$(PY) tests/rings.py --all $*

check: setup seams-doc checkpoints-doc features-doc results-doc bench-doc ## lint, format, types, generated documents
	@echo "[check] ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "[check] lint-imports"
	@$(VENV)/bin/lint-imports --no-logo
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

features: setup ## minutes: every serving feature with EAGLE31 and without; writes its part of docs/compatibility.md
	@OMP_NUM_THREADS=1 $(PY) tests/integration/matrix_report.py $(ARGS)

features-doc: setup
	@echo "[check] docs/compatibility.md is what docs/results/compatibility.json says"
	@$(PY) tests/integration/matrix_report.py --check

results: setup ## an hour: probe and serve the shipped pair of heads; writes docs/results/pairs.json and docs/drift.md
	@$(PY) launch/results.py $(ARGS)

results-doc: setup
	@echo "[check] docs/drift.md is what docs/results/pairs.json says"
	@$(PY) launch/results.py --check

fuzz: setup ## thousands of randomly broken heads, each exact or refused; ARGS="--count 5000 --seed 1"
	@echo "[fuzz] build/fuzz.json"
	@$(PY) tests/fuzz/run.py $(ARGS)

soak: setup ## long: 500 mixed requests and faults, 10,000 rounds of rollback, the samplers' distribution; SEED=1
	@echo "[soak] load and faults: build/soak.json"
	@$(PY) tests/load/soak.py --requests 500 --concurrency 16 --seed $(SEED)
	@echo "[soak] rollback: build/rollback.json"
	@$(PY) tests/rollback/rollback_soak.py --rounds 10000 --seed $(SEED) | tee build/rollback.json
	@echo "[soak] distribution: build/verify/distribution.json"
	@$(PY) -m sglang_eagle31 verify --distribution --steps 50000 --seed $(SEED)

bench: setup ## hours: speed by concurrency with and without speculation; writes docs/results/bench.json, docs/performance.md
	@$(PY) -m sglang_eagle31 bench $(BENCH) $(ARGS)

bench-doc: setup
	@for file in docs/results/bench*.json; do \
	  echo "[check] docs/performance.md is what $$file says"; \
	  $(PY) -m sglang_eagle31 bench --out "$$file" --document docs/performance.md --check || exit 1; \
	done

clean: ## remove build/ and caches (not the virtual environment, not the prepared model)
	@rm -rf build .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
