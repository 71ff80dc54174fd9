# Everything starts with `make quickstart` or `make test`; both install what they need into .venv first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help install quickstart test kernel-test bench lint types format lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

install: $(READY) ## Make .venv and install from requirements.lock, if that has changed

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fewsure needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version); set PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

quickstart: install ## Train SImPa and MAML on sine-line, compare them, draw the figures (minutes on two CPU cores)
	$(BIN)/fewsure quickstart

test: install lint types ## Lint, types, doctests and tests
	$(BIN)/python -m pytest

kernel-test: install ## The GPU kernels in Triton's interpreter (installs Triton, 200 MB)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check triton
	$(BIN)/python -m pytest tests/test_kernels.py

bench: install ## Timings on this CPU, as ratios
	$(BIN)/python benchmarks/vectorised.py
	$(BIN)/python benchmarks/busy_machine.py

lint: install ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## Static types
	$(BIN)/mypy

format: install ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Make requirements.lock anew from requirements.in, in an environment of its own
	rm -rf .venv/lock && $(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.in
	{ echo "# Made by \`make lock\` from requirements.in."; \
	  .venv/lock/bin/python -m pip freeze | sed -E 's/^(torch==[0-9.]+)\+cpu$$/\1/'; } > requirements.lock
	rm -rf .venv/lock

clean: ## Remove the environment and caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
