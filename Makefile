# Every target does its own set-up, in .venv. PYTHON=python3.12 make test takes another interpreter.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := lab,export,lightning,transformers,ray,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow lint format bench bench-export results results-page clean

demo: .venv/demo
	$(BIN)/flipout demo

test: lint
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report

test-slow: .venv/everything
	$(BIN)/pytest -m slow

lint: .venv/everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/everything
	$(BIN)/python -m benchmarks

bench-export: .venv/everything
	$(BIN)/python -m benchmarks.export

# Hours: every run of the small grids that is not there yet, then docs/results.md made from all of them.
GRIDS := small-lenet-300-100 small-lenet-5 small-vgg19 small-resnet18
results: .venv/everything
	mkdir -p docs/results
	for grid in $(GRIDS); do \
	  $(BIN)/flipout sweep $$grid --out runs/$$grid || [ $$? -eq 1 ] || exit 1; \
	  $(BIN)/flipout report runs/$$grid && cp runs/$$grid/report/results.json docs/results/$$grid.json || exit 1; \
	done
	$(MAKE) results-page

# Seconds: docs/results.md again, from the results that are kept in docs/results.
results-page: .venv/everything
	$(BIN)/flipout claims docs/results/*.json --out docs/results.md

clean:
	rm -rf .venv build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flipout needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[lab,export]'
	touch $@

.venv/everything: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@ .venv/demo
