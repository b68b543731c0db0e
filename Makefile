# One command runs the demo, one passes the tests; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo test test-long lint types bench screenshots browser clean

help:
	@echo "make demo   small DeepSeek-V3 checkpoint, loaded live at http://127.0.0.1:8787"
	@echo "make test   all tests but the long ones"
	@echo "make lint   ruff and mypy    make bench   benchmarks    make test-long   the long tests"

demo: $(VENV)/.installed
	$(BIN)/loadscope demo $(ARGS)

test: $(VENV)/.installed-dev browser
	$(BIN)/python -m pytest $(ARGS)

test-long: $(VENV)/.installed-dev browser
	$(BIN)/python -m pytest -m "long and not gpu" $(ARGS)

lint: $(VENV)/.installed-dev types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mypy wants the installed names, the folders have the short ones
types:
	@mkdir -p build/types && ln -sfn ../.. build/types/loadscope

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/record.py
	$(BIN)/python benchmarks/mapping.py

screenshots: $(VENV)/.installed-dev browser
	$(BIN)/python docs/make_screenshots.py

# the page tests need a Chromium: the system's, Debian's package, or Playwright's own
browser: $(VENV)/.installed-dev
	@.ci/browser $(BIN)/playwright

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e ".[fast,docs]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
