# On a fresh machine two commands suffice: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test checks bytecode install lint types format docs docs-serve mutation clean

# `wayfare compare` without Optimal: under a minute on two cores.
demo: $(VENV)/.installed
	$(BIN)/wayfare compare --schemes mads,afl-spar:paced,afl-spar,afl:fitting,afl,sfl-spar

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory --jobs=2 checks
	$(BIN)/python -m pytest -n 4 --dist worksteal

checks: lint types bytecode

# Compile the tests once, beside mypy; otherwise each of the four processes would do so.
bytecode: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --collect-only -qq >/dev/null || true

# Mutation tests (docs/results/mutation.md). All mutants take a day, a sample an hour or two:
# make mutation MUTATION="--sample 40"
mutation: $(VENV)/.installed-mutation
	nice -n 10 $(BIN)/python scripts/mutation.py $(MUTATION)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy benchmarks scripts
	$(BIN)/mypy --package tests
	$(BIN)/mypy examples

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Build the site in build/site.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-dev
	CACHE_NOTEBOOKS=true $(BIN)/mkdocs serve

install: $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wayfare needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,sumo]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-mutation: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutation]'
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
