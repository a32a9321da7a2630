# These commands do everything on a fresh machine with Python 3.11 and make:
#   make demo    train a memory agent until it has solved its task, and show what it learned
#   make check   lint, type-check, and run the fast unit tests
#   make test    set up, lint, type-check, and run all tests but the slow ones
#   make docs    build the documentation into docs/_build

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
READY  := $(VENV)/.ready
# The variable reaches isolated builds too, which `pip -c` does not.
PIP    := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

# These wait for processes that are killed or hang, look at all that is left on the machine, send themselves
# Ctrl-C, which is off in parallel runs, or fork from a server that parallel runs make slow (tests/support/doomed.py). So
# they come last, one after the other.
ALONE := tests/faults tests/runtimes/test_async.py tests/runtimes/test_ray.py tests/stress tests/sweep/test_work.py \
	tests/base/test_child_process.py tests/base/test_shared_memory.py tests/sweep/test_sweep.py

# Seconds of pure functions, without processes or training.
FAST := tests/base tests/experience tests/tasks tests/project/test_tables.py tests/project/test_contributing.py

.PHONY: demo check test test-slow docs lint types format clean help

help:
	@sed -n 's/^#   //p' Makefile

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Recollect needs Python 3.11 or later: make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $(BASE)

$(READY): $(BASE)
	$(PIP) -e '.[dev]'
	@touch $(READY)

demo: $(BASE)
	$(BIN)/python examples/demo.py

check: lint types
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 $(ALONE:%=--ignore=%) $(FAST)

test: lint types
	@status=0; \
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile $(ALONE:%=--ignore=%) || status=1; \
	$(BIN)/python -m pytest $(ALONE) || status=1; \
	exit $$status

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build
	@echo "open docs/_build/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist runs docs/_build .pytest_cache .ruff_cache .hypothesis src/*.egg-info
