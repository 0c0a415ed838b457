# Every target sets up what it needs in .venv. To use another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := lab,export,ray,lightning,transformers,accelerate,mlflow,wandb,docs,dev
# One thread each: several processes with several spinning threads each take far longer than one process.
PARALLEL := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test test-slow attack lint format docs wheel bench bench-train bench-zeros bench-export matrix results results-page clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1 \2/p' Makefile | while read -r name text; do printf 'make %-13s %s\n' "$$name" "$$text"; done

demo: .venv/demo ## compare five methods on an embedded data set; about a minute
	$(BIN)/flipout demo

test: lint ## ruff, mypy, and all tests but the slow ones, with coverage
	$(PARALLEL) $(BIN)/pytest --numprocesses auto --dist worksteal --cov=flipout --cov=flipout_lab --cov-report=term-missing:skip-covered

test-slow: wheel ## the stress tests, and the wheel
	$(PARALLEL) $(BIN)/pytest -m slow --numprocesses auto --dist worksteal

attack: .venv/everything ## the stress tests with random cases and fresh seeds, for FLIPOUT_ATTACK_MINUTES (10)
	$(PARALLEL) $(BIN)/python -m tests.attacks

lint: .venv/everything ## ruff and mypy, over the library, tests, examples and benchmarks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/everything ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/everything ## build the documentation site in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The example runs in a new folder, so that nothing but the installed wheel can be imported.
wheel: .venv/everything ## build what is published, check it, install the wheel into a clean environment, and run the quickstart from there
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	  $(BIN)/python -m venv "$$folder/venv"; \
	  "$$folder/venv/bin/python" $(INSTALL) "$$(echo dist/*.whl)[lab]"; \
	  cp examples/quickstart.py "$$folder"; cd "$$folder"; \
	  venv/bin/python -c 'import flipout, sys; print(flipout.__file__); sys.exit(sys.prefix not in flipout.__file__)'; \
	  venv/bin/python quickstart.py --epochs 4; \
	  venv/bin/flipout plan --model mlp --sparsity 0.9 --epochs 350 --recipe paper; \
	  venv/bin/flipout sweep quick --dry-run >sweep.txt; tail -n 1 sweep.txt

bench: .venv/everything ## measure what pruning costs; about five minutes
	$(BIN)/python -m benchmarks

bench-train: .venv/everything ## measure whole trainings, dense and shrunk, on CIFAR-10; about fifteen minutes on two cores
	$(BIN)/python -m benchmarks.shrinking

matrix: .venv/everything ## prune, compact and reload networks of many architectures, into docs/architectures.md; about fifteen minutes
	rm -f benchmarks/matrix.json
	$(BIN)/python -m benchmarks.matrix --output benchmarks/matrix.json --page $(MATRIX)

bench-zeros: .venv/everything ## measure what scattered zeros are worth on a CPU; about 35 minutes on two idle cores
	$(BIN)/python -m benchmarks.zeros
	$(BIN)/python -m benchmarks.readme_figures

bench-export: .venv/everything ## measure exported networks on CIFAR-10; about fifteen minutes
	$(BIN)/python -m benchmarks.export

# All grids share one folder, so that a run of two grids is run once. Interrupted runs continue when make is started again.
GRIDS := second-chances-lenet-300-100 small-resnet10 equal-time-resnet10 channels-resnet10 one-shot cited-methods small-lenet-300-100 paper-lenet-300-100
results: .venv/everything ## run what is missing of the grids (days on one core), then write docs/results.md
	mkdir -p docs/results
	for grid in $(GRIDS) smoke-densenet121; do \
	  data=; [ $$grid = smoke-densenet121 ] && [ -d "$$FLIPOUT_DATA/imagenette-tiny" ] && data='--set data=imagenette-tiny'; \
	  known=; [ -f docs/results/$$grid.json ] && known="--known docs/results/$$grid.json"; \
	  $(BIN)/flipout sweep $$grid $$data $$known --out runs/results || [ $$? -eq 1 ] || exit 1; \
	  $(BIN)/flipout report runs/results --grid $$grid --out runs/results/report/$$grid || exit 1; \
	  cp runs/results/report/$$grid/results.json docs/results/$$grid.json; \
	done
	$(MAKE) results-page

results-page: .venv/everything ## write docs/results.md, docs/cited-methods.md and the README's pictures from the files in docs/results; seconds
	$(BIN)/flipout cited docs/results/cited-methods.json --out docs/cited-methods.md
	$(BIN)/flipout claims $(filter-out %/cited-methods.json,$(wildcard docs/results/*.json)) --out docs/results.md
	$(BIN)/python -m benchmarks.readme_figures

clean: ## delete .venv and everything that is built
	rm -rf .venv build dist site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flipout needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

KERNELS := hatch_build.py src/flipout/kernels/build.py $(wildcard src/flipout/kernels/c/*)
.venv/demo: pyproject.toml constraints.txt $(KERNELS) | $(BIN)/python
	$(BIN)/python $(INSTALL) --editable '.[lab,export]'
	touch $@

.venv/everything: pyproject.toml constraints.txt $(KERNELS) | $(BIN)/python
	$(BIN)/python $(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@ .venv/demo
