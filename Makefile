# These commands do everything on a fresh machine with Python 3.11 and make:
#   make demo    train a memory agent until it has solved its task, and show what it learned
#   make check   lint, type-check, and run the fast tests: about a minute, for all day
#   make test    set up, lint, type-check, and run all tests but the slow ones
#   make docs    build the documentation into docs/_build
#   make test-adapters    audit other packages, each in an environment of its own: 8 GB, some minutes

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
READY  := $(VENV)/.ready
# The variable reaches isolated builds too, which `pip -c` does not.
PIP    := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

# These start Ray clusters, one after the other, beside all other tests: they wait most of the time.
ALONE := tests/faults/test_ray_faults.py tests/runtimes/test_ray.py
PARALLEL := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(ALONE:%=--ignore=%)

.PHONY: demo check fast-tests test parallel-tests ray-tests test-slow durations docs lint types format clean help test-adapters

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

# Types are checked beside the tests: two processes of tests do not keep two cores busy all the time.
check: lint
	@$(MAKE) --no-print-directory --keep-going --jobs=2 types fast-tests

fast-tests: $(READY)
	$(PARALLEL) -q --fast

# The parts share the cores; Ray's output comes in one piece.
test: lint
	@$(MAKE) --no-print-directory --keep-going --jobs=3 types parallel-tests ray-tests

parallel-tests: $(READY)
	$(PARALLEL)

ray-tests: $(READY)
	@$(BIN)/python -m pytest $(ALONE) > $(VENV)/ray-tests.txt 2>&1; status=$$?; cat $(VENV)/ray-tests.txt; exit $$status

# With many examples of each property, where `make test` tries few.
test-slow: $(READY)
	@status=0; for part in '$(PARALLEL)' '$(BIN)/python -m pytest $(ALONE)'; do \
		$$part -m 'slow or hypothesis' --hypothesis-profile=many || status=1; \
	done; exit $$status

# What `make check` leaves out, see tests/conftest.py: whatever takes 0.1 seconds or more on idle cores.
durations: $(READY)
	for part in '$(PARALLEL)' '$(BIN)/python -m pytest $(ALONE)'; do $$part -q --durations=0 --durations-min=0.1; done | \
	sed -nE 's,^[0-9.]+s +(call|teardown) +tests/(.*/)?(test_[^[ ]+).*,\3,p; s,^[0-9.]+s +setup +tests/(.*/)?(test_[^:]+).*,\2,p' | \
	sort -u > tests/long.txt

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build
	@echo "open docs/_build/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

# The auditor's adapters with the real packages, and the suspicions about them. The pins hold in isolated builds too.
FOREIGN := sb3 skrl torchrl rsl-rl tianshou rllib sample-factory

.venvs/%/.ready: bench/others/requirements-%.txt bench/others/requirements-audit.txt
	$(PYTHON) -m venv $(@D)
	PIP_CONSTRAINT=$(CURDIR)/$< $(@D)/bin/pip install --quiet --disable-pip-version-check \
		-r $< -r bench/others/requirements-audit.txt
	@touch $@

test-adapters: $(READY) $(FOREIGN:%=.venvs/%/.ready)
	@status=0; for name in $(FOREIGN); do echo "$$name:"; \
		PYTHONPATH=src OMP_NUM_THREADS=1 .venvs/$$name/bin/python -m pytest -q --noconftest -c /dev/null --rootdir=. \
			-p no:cacheprovider tests/audit/test_adapters.py -k "$$name" || status=1; \
	done; $(BIN)/python bench/audits/run.py || status=1; exit $$status

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist runs docs/_build .pytest_cache .ruff_cache .hypothesis src/*.egg-info
