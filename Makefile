# How to work here. Each target makes the environment it needs; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that run tests: more than two cores, for many tests wait for real time to pass.
WORKERS ?= 3
# The parts of the tree that hold Python and exist.
CODE := $(wildcard src tests ui_tests interop_tests scripts examples bench seeds peers)

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-ui test-interop lint format audit seeds peers peers-fast bench docs pin clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.test-ready ## play the tour of the kernel
	$(BIN)/python examples/kernel_tour.py

test: $(VENV)/.test-ready ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) -m "not documentation" $(ARGS)

test-all: ## run the tests on every CPython from 3.11 up that is installed
	PYTHON="$(PYTHON)" scripts/test-all $(ARGS)

test-ui: ## look at the HTML report in a real browser (brings its own; pictures in build/ui)
	PYTHON="$(PYTHON)" scripts/test-ui $(ARGS)

test-interop: ## talk ACP with the SDKs of npm and PyPI, as client and as agent (needs Node 20 and npm)
	PYTHON="$(PYTHON)" scripts/test-interop $(ARGS)

lint: $(VENV)/.lint-ready ## check style, types, layers and the tree
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_tree.py

format: $(VENV)/.lint-ready ## rewrite the code in the house style
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

audit: $(VENV)/.test-ready ## stop every word of the kernel, and every run, at every point, and drive it with random programs
	QUIESCE_AUDIT=full $(BIN)/python -m pytest -n $(WORKERS) -m audit $(ARGS)

seeds: ## audit real releases with known bugs, each in an environment of its own
	$(PYTHON) seeds/run.py $(ARGS)

peers: ## stop other people's SDKs in every way, without and with quiesce, and write docs/peers.md
	$(PYTHON) peers/run.py $(ARGS)

peers-fast: ## a handful of those, and an MCP client in FastAPI
	$(PYTHON) peers/run.py --fast $(ARGS)

bench: $(VENV)/.bench-ready ## measure what a scope, an owned thing, a run, a message and an audit cost, beside their peers
	$(BIN)/python bench/kernel.py $(ARGS)
	$(BIN)/python bench/own.py
	$(BIN)/python bench/agents/run.py
	$(BIN)/python bench/wire/run.py
	$(BIN)/python bench/audit.py

docs: $(VENV)/.docs-ready $(VENV)/.test-ready ## run every program in the documentation, and build it into site/
	$(BIN)/python -m pytest -n $(WORKERS) tests/test_docs.py $(ARGS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pin: ## resolve the newest versions again and write constraints.txt
	$(PYTHON) scripts/pin_versions.py

clean: ## remove every environment, cache and build product
	rm -rf $(VENV) .venvs .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp an extra: testing needs neither a type checker nor a documentation builder.
$(VENV)/.%-ready: pyproject.toml constraints.txt
	scripts/environment "$(PYTHON)" $(VENV) $*
	@touch $@
