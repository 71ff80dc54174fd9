# Everything starts with `make quickstart` or `make test`; both install what they need into .venv first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help install quickstart test test-fast kernel-test browser-test audit bench results lint types format lock wheel docs docs-lock tutorial tutorial-test clean

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

quickstart: install ## Train SImPa-latent and MAML on sine-line, compare them, draw the figures (minutes on two CPU cores)
	$(BIN)/fewsure quickstart

test: install lint types ## Lint, types, doctests and tests, in as many processes as there are cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-fast: install ## The same tests without those that are slow, for those who develop
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow"

kernel-test: install ## The GPU kernels in Triton's interpreter (installs Triton, 200 MB)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check triton
	$(BIN)/python -m pytest tests/test_kernels.py

browser-test: install docs ## The report and the site in headless Chromium (installs Debian's), with screenshots
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
		|| $(if $(filter 0,$(shell id -u)),,sudo) apt-get install --yes --no-install-recommends chromium
	$(BIN)/python -m pytest tests/test_browser.py tests/test_site.py

audit: ## Known vulnerabilities of the pinned dependencies (asks pypi.org)
	test -x .venv/audit/bin/pip-audit || $(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@for lock in requirements.lock requirements-docs.lock; do \
		.venv/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement $$lock \
			|| { echo "$$lock: a vulnerability is listed above, or pypi.org could not be asked" >&2; exit 1; }; \
	done

bench: install ## Timings on this CPU, as ratios
	$(BIN)/python benchmarks/vectorised.py
	$(BIN)/python benchmarks/busy_machine.py

results: install ## Write docs/results/ and the README's table of results from results/*.json
	$(BIN)/python benchmarks/pages.py

lint: install ## Style, the layers of the package, and the prose of pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/prose.py

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

wheel: install ## Build the package into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build --target wheel --directory dist

tutorial: install ## Run the README's example and the tutorial, and write what they print into them (minutes)
	$(BIN)/python tests/tutorial.py README.md docs/tutorial.md --write

tutorial-test: wheel ## Run the whole tutorial from the built wheel, in a fresh environment (minutes)
	rm -rf .venv/tutorial && $(PYTHON) -m venv .venv/tutorial
	.venv/tutorial/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock dist/fewsure-*.whl
	.venv/tutorial/bin/python tests/tutorial.py README.md docs/tutorial.md
	rm -rf .venv/tutorial

DOCS := .venv/docs
docs: ## Build the documentation site into build/site (its links are checked)
	test -x $(DOCS)/bin/mkdocs || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.lock
	$(DOCS)/bin/python -m doctest docs/site/docstrings.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict

docs-lock: ## Make requirements-docs.lock anew from requirements-docs.in
	rm -rf .venv/docs-lock && $(PYTHON) -m venv .venv/docs-lock
	.venv/docs-lock/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.in
	{ echo "# Made by \`make docs-lock\` from requirements-docs.in."; .venv/docs-lock/bin/python -m pip freeze; } \
		> requirements-docs.lock
	rm -rf .venv/docs-lock

clean: ## Remove the environment and caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
