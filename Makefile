# How to work here. Each target creates the environment it needs; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that run tests: more than there are cores, as many tests wait for real time to pass.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n * 5 / 2)))
# The gate gives a test that fails a second try: see tests/second_try.py.
PYTEST := $(BIN)/python -m pytest $(SECOND_TRY)
# A process that runs out of tests takes some over from another one.
SHARED = -n $(WORKERS) --dist worksteal
# What depends most on the interpreter: the tests for a version between the oldest and the newest.
BETWEEN := tests/kernel tests/cli/exec
# Without bytecode, each of the thousands of programs that the tests start would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE
# The parts of the tree that hold Python and exist.
CODE := $(wildcard src chat tests ui_tests interop_tests embedded_tests dropin_tests docker_tests database_tests scripts examples bench seeds peers suites zombies)

.DEFAULT_GOAL := help
.PHONY: help run chat test test-slow test-others test-all test-next test-taskgroups test-ui test-wheel test-interop test-embedded test-dropin test-docker test-database test-docs coverage mutants lint format audit audit-once nightly seeds peers peers-fast zombies zombies-fast suites bench docs pin clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.cli-ready ## play the tour: a program and five situations that leak, and the same with quiesce; then open the chat
	$(BIN)/quiesce tour $(ARGS)
	@if [ -t 0 ] && [ -t 1 ]; then $(MAKE) --no-print-directory chat ARGS=; \
	else echo "make chat, at a terminal, opens the chat."; fi

chat: $(VENV)/.chat-ready ## talk to an agent that can be interrupted at any moment
	$(BIN)/quiesce chat $(ARGS)

test: $(VENV)/.test-ready ## run the tests; those that take long, and the sweeps, have targets of their own
	$(PYTEST) $(SHARED) -m "not documentation and not slow and not audit" $(ARGS)

test-slow: $(VENV)/.test-ready ## run the slow tests: many programs, and uvloop (in real time: it has no virtual clock)
	$(PYTEST) $(SHARED) -m slow $(ARGS)

test-all: ## run all tests on every CPython from 3.11 up that is installed, each in every world
	PYTHON="$(PYTHON)" WORKERS=$(WORKERS) scripts/test-all --every-world -m "not documentation" $(ARGS)

test-others: ## run the tests that depend on the interpreter on the CPythons that `make test` does not use; on the newest all others too, in one world
	BETWEEN="$(BETWEEN)" TESTED="$(PYTHON)" PYTHON="$(PYTHON)" WORKERS=$(WORKERS) scripts/test-all --one-world -m "not documentation and not slow" $(ARGS)

test-next: ## run the tests, and use the wheel, on CPython 3.14 and 3.15 in a Debian root of their own (as root; PYTHONS=3.15 for one)
	PYTHON="$(PYTHON)" WORKERS=$(WORKERS) scripts/test-next $(ARGS)

test-taskgroups: $(VENV)/.test-ready ## run CPython's own tests of asyncio.TaskGroup against Scope, on every installed CPython
	$(PYTEST) -n 3 tests/taskgroups/cases.py $(ARGS)
	TESTED="$(PYTHON)" PYTHON="$(PYTHON)" WORKERS=3 scripts/test-all tests/taskgroups/cases.py $(ARGS)

test-ui: ## test the HTML report and the documentation in a real browser (installs its own; pictures in build/ui)
	PYTHON="$(PYTHON)" scripts/test-ui $(ARGS)

test-wheel: ## build the wheels and sdists, and use the wheels in empty environments on CPython 3.11, 3.12 and 3.13
	PYTHON="$(PYTHON)" scripts/test-wheel $(ARGS)

test-interop: ## talk ACP with the SDKs of npm and PyPI, as client and as agent (needs Node 20 and npm)
	PYTHON="$(PYTHON)" scripts/test-interop $(ARGS)

test-embedded: ## run the embedded model with its real weights (fetches 130 MB)
	PYTHON="$(PYTHON)" scripts/test-embedded $(ARGS)

test-dropin: $(VENV)/.lint-ready ## test the drop-ins, each in an environment with the real SDK (ARGS="--only openai_agents" for one)
	$(PYTHON) dropin_tests/run.py $(ARGS)

test-docker: $(VENV)/.test-ready ## stop commands in containers, with a Docker engine of its own from Debian (as root)
	scripts/test-docker $(ARGS)

test-database: ## test conversations in PostgreSQL, with a real server of its own (installs Debian's as root; ARGS="-m slow" for the slow part)
	PYTHON="$(PYTHON)" WORKERS=2 scripts/test-database $(ARGS)

test-docs: $(VENV)/.test-ready ## run every program in the documentation, and compare what it prints with the page
	$(PYTEST) $(SHARED) tests/test_docs.py $(ARGS)

coverage: $(VENV)/.coverage-ready ## measure which lines and branches of the library the tests run (HTML in build/coverage)
	$(BIN)/python scripts/measure_coverage.py $(SHARED) -m "not documentation and not audit" $(ARGS)

mutants: $(VENV)/.test-ready ## break the kernel and the engine in some 300 ways, and see whether the tests notice
	$(BIN)/python scripts/mutants.py $(ARGS)

lint: $(VENV)/.lint-ready ## check style, types, layers and the tree
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/pyright
	PYTHONPATH=. $(BIN)/lint-imports --no-cache --config import-contracts.toml
	$(BIN)/python scripts/check_tree.py
	$(BIN)/python scripts/check_workflows.py

format: $(VENV)/.lint-ready ## rewrite the code in the house style
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

audit: $(VENV)/.test-ready ## stop everything public at every point, once and twice, in every world, and run random programs on it
	QUIESCE_AUDIT=full $(PYTEST) $(SHARED) --every-world -m audit $(ARGS)

audit-once: $(VENV)/.test-ready ## the same, shorter: every point once, on asyncio and trio (takes a few minutes)
	QUIESCE_AUDIT=once $(PYTEST) $(SHARED) -m audit $(ARGS)

nightly: ## run what takes too long for each change: full audits, every test on every Python, every stop of every SDK
	$(PYTHON) -u scripts/gate.py --nightly $(ARGS)

seeds: ## audit real releases with known bugs, each in an environment of its own
	$(PYTHON) seeds/run.py $(ARGS)

peers: ## stop other SDKs in every way, without and with quiesce, and write docs/peers.md
	$(PYTHON) peers/run.py $(ARGS)

peers-fast: ## run a handful of those, and an MCP client in FastAPI
	$(PYTHON) peers/run.py --fast $(ARGS)

zombies: ## stop the client of real MCP servers in every way, count what is left, and write it into docs/exec.md (needs Node 20 and npm)
	$(PYTHON) zombies/run.py $(ARGS)

zombies-fast: ## run a handful of those
	$(PYTHON) zombies/run.py --fast $(ARGS)

suites: ## run the suites of other packages, without and with pytest --quiesce, and compare how each test ends (ARGS=--quick for three)
	$(PYTHON) suites/run.py $(ARGS)

bench: $(VENV)/.bench-ready ## measure what a scope, an owned thing, a run, a message, a session, an audit and pytest --quiesce cost, compared with similar packages
	$(BIN)/python bench/kernel.py $(ARGS)
	$(BIN)/python bench/own.py
	$(BIN)/python bench/agents/run.py
	$(BIN)/python bench/wire/run.py
	$(BIN)/python bench/claude/run.py
	$(BIN)/python bench/realtime/run.py
	$(BIN)/python bench/audit.py
	$(BIN)/python bench/pytest_plugin.py

docs: $(VENV)/.docs-ready ## build the documentation into site/ (`make test-docs` runs its programs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pin: ## resolve the newest versions again and write constraints.txt
	$(PYTHON) scripts/pin_versions.py

clean: ## remove every environment, cache and build product
	rm -rf $(VENV) .venvs .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The library of the embedded model has no wheels for some platforms; the chat works without it, and says so.
$(VENV)/.chat-ready: $(VENV)/.cli-ready
	@scripts/environment "$(PYTHON)" $(VENV) embedded || echo "the embedded model cannot be installed here: see quiesce chat --help for other models"
	@touch $@

# One stamp per extra: testing needs neither a type checker nor a documentation builder.
$(VENV)/.%-ready: pyproject.toml chat/pyproject.toml constraints.txt
	scripts/environment "$(PYTHON)" $(VENV) $*
	@touch $@
