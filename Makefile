# Everything below sets itself up in .venv; a fresh machine needs Python 3.11+ and make.
PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
  >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
QUICK := --ignore tests/unit/privacy/test_filter.py tests/unit/hazmat tests/unit/privacy tests/unit/secagg tests/unit/protocol \
  tests/unit/app/test_job.py tests/unit/data/test_schema.py tests/unit/tasks/test_count.py \
  tests/unit/tasks/clustering/test_kmeans_task.py tests/unit/tasks/supervised/test_naive_bayes.py \
  tests/protocol/test_aggregator.py tests/protocol/test_client.py tests/properties/test_payloads.py
# Bytecode is written by the first import: most of what is installed is never imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-nightly collect quick house lint bench docs wheels native nightly mutants clean

demo: $(VENV)/.base
	$(BIN)/cloister demo --out demo-out

# The gate of a change; tests marked `nightly` take more than half of the time of all.
# Three workers for two cores: tests of the network, of kills and of FLARE wait half of their time.
# A file stays with one worker, which makes its federations, fits and prices once. Files come in the
# order of `testpaths`: long ones first, so that none is left alone at the end.
# Hundreds of processes start, none of which should compile the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -q
# Ledgers wait for their disk thousands of times; where memory has a folder with room, they wait for that.
# Kills end processes, not the machine, so what was written is there.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4e6 { print "/dev/shm" }')
test: $(VENV)/.dev
	folder=$$(mktemp -d $(addprefix -p ,$(MEMORY))) && trap 'rm -rf "$$folder"' EXIT && \
	  $(PYTEST) --basetemp="$$folder/tests" -m "not nightly"

# The rest. A test in a browser needs Chromium or Chrome.
test-nightly: $(VENV)/.dev
	$(PYTEST) -m nightly

# Imports all tests once: each worker of `test` would compile them, and their assertions, by itself.
collect: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 0 --collect-only -qq >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }

# The laws of the core, in under a minute of CPU time: for between two thoughts.
quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 0 -q -m "not slow" $(QUICK)

# How much there is: lines, functions, repetition, what an import loads.
house: $(VENV)/.dev
	$(BIN)/python scripts/house.py

lint: $(VENV)/.dev
	$(BIN)/ruff check --no-cache src lab tests benchmarks
	$(BIN)/ruff format --no-cache --check src lab tests benchmarks
	$(BIN)/towncrier build --draft --version next >/dev/null
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py $(BENCH)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --site-dir site

# Builds cloister and cloister-lab, and installs the first without the second and with it.
wheels: $(VENV)/.dev
	PYTHON=$(BIN)/python scripts/wheels dist

# Compiles the loops over records again, after a change; without a C++17 compiler (GCC 12, Clang 14) it says so.
native: $(VENV)/.base
	CLOISTER_REQUIRE_NATIVE=1 $(PIP) install --no-compile --no-deps --editable .

# What takes longer than a change may wait: sanitizers, many more examples, other implementations.
nightly: $(VENV)/.dev
	scripts/nightly

# Changes each function that privacy depends on in small ways, and tries whether tests notice; hours, and
# it continues where it was stopped: make mutants MUTANTS="--only noise-scale"
mutants: $(VENV)/.dev
	$(BIN)/python scripts/mutants.py $(MUTANTS)

clean:
	rm -rf $(VENV) build site demo-out dist

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "cloister needs Python 3.11 or newer with venv (Debian: apt install python3-venv)."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each installs what the one before it does, so that the package is compiled once.
$(VENV)/.base: pyproject.toml lab/pyproject.toml | $(VENV)/bin/python
	$(PIP) install --no-compile --editable '.[pictures]' --editable lab
	touch $@

$(VENV)/.dev: pyproject.toml lab/pyproject.toml | $(VENV)/bin/python
	$(PIP) install --no-compile --editable '.[dev]' --editable lab
	touch $@ $(VENV)/.base

$(VENV)/.docs: pyproject.toml lab/pyproject.toml | $(VENV)/bin/python
	$(PIP) install --no-compile --editable '.[dev,docs]' --editable lab
	touch $@ $(VENV)/.dev $(VENV)/.base
