# Each target does all of the set-up itself, once: a virtual environment in .venv with pinned dependencies.
# `make demo` and `make test` are where to begin. ARGS reaches the program: make test ARGS="-k claims -x".

PYTHON ?= python3
ARGS ?=
# Tests wait for disks, sockets and processes most of their time; a file's tests stay together.
PARALLEL ?= -n 3 --dist loadfile
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo fleet test test-all soak bench check clean

help:
	@echo "make setup     the virtual environment in .venv, which every other target makes as well"
	@echo "make demo      watch an agent work, embedded: no key and no service needed"
	@echo "make fleet     workers and beat on this machine, twenty runs through the broker, where each step ran"
	@echo "make test      the tests, with PostgreSQL and Redis found or started (under 10 minutes)"
	@echo "make check     ruff, mypy --strict, import contracts"
	@echo "make test-all  the tests and the full cross products"
	@echo "make soak      the long cases at full size"
	@echo "make bench     the benchmarks; results go to bench/results/"
	@echo "make clean     remove the virtual environment and all caches"

setup: $(READY)

demo: $(READY)
	@$(BIN)/agentloom demo $(ARGS)

fleet: $(READY)
	@$(BIN)/python -m bench.fleet_demo

test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) -m "not full and not soak" $(ARGS)

test-all: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) -m "not soak" $(ARGS)

soak: $(READY)
	$(BIN)/python -m pytest -m soak $(ARGS)

bench: $(READY)
	$(BIN)/python -m bench $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): setup.cfg pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Remedy on Debian or Ubuntu: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed." >&2; \
	  echo "Remedy: install one, for example python3.11 and python3.11-venv, and name it: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot make virtual environments. Remedy: apt-get install python$$version-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $@
