# `make` sets the project up, `make help` lists the rest. Works with GNU make 3.81 and later; needs no root.
# PYTHON=... names the Python to use, VENV=... another folder for the environment.

VENV ?= .venv
PY := $(VENV)/bin/python
PYTHONS := python3.13 python3.12 python3.11 python3
# Must run (a version manager's shim may be there and fail), be new enough and be able to make environments.
CAN_BE_USED = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
UV := uv==0.13.8
# Modules are compiled once, not in each of the hundreds of processes that the tests start, whatever the shell has set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := setup
.PHONY: setup quickstart test laws faults check doctor llama rebuild bench peers lock clean help

setup: $(VENV)/.locked ## make .venv, build llama.cpp for this machine, install the locked dependencies (the default)
	@echo "Ready. Next: make quickstart, make test, make help."

quickstart: $(VENV)/.locked ## run the job jobs/quickstart.yaml; it ends by saying where its results are
	@$(PY) -m pipeline job=quickstart

# One process a core, up to four.
BESIDE := --numprocesses logical --maxprocesses 4

# The tests of a file stay together, for what they share is made once; files come in their order, as those with few tests
# are not those that are soon done. `check` has run two.
test: check ## check, then run the tests that hold each law once
	@$(PY) -m pytest $(BESIDE) --dist loadfile --no-loadscope-reorder --ignore tests/test_imports.py --ignore tests/test_conf.py

laws: $(VENV)/.locked ## the sweeps: each law over all types, families and formats, and what starts servers, Ray and compilers
	@$(PY) -m pytest $(BESIDE) --dist loadfile --no-loadscope-reorder -m laws

# One file has a third of these tests. tests/faults is named for its conftest.py, which the process that prints needs.
faults: $(VENV)/.locked ## the tests that take long: kill, stop and starve runs, and see that nothing is lost
	@$(PY) -m pytest $(BESIDE) --dist worksteal --durations 15 -m faults tests tests/faults

check: $(VENV)/.locked ## ruff, mypy, the order of imports, and every job and option of conf composed
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(PY) -m pytest -q tests/test_imports.py tests/test_conf.py

doctor: $(VENV)/.locked ## versions, CPU features, and the proof that quantised models decode
	@$(PY) -m pipeline doctor

llama: $(VENV)/.made ## look at the compilers again (after installing one) and build if another is now better
	@$(PY) tools/build/build.py
	@touch $(VENV)/.llama

rebuild: $(VENV)/.made ## build llama.cpp anew, even if a built wheel is cached
	@$(PY) tools/build/build.py --rebuild
	@touch $(VENV)/.llama

bench: $(VENV)/.locked ## measure the ladder and the peers (ARGS="bench.scenarios=[few_shot] model.path=..."); takes long
	@$(PY) -m pipeline job=bench $(ARGS)

peers: $(VENV)/.made ## build llama-server and llama.cpp's benchmarks, to measure against (some six minutes)
	@$(PY) tools/build/peers.py

lock: $(VENV)/.made ## make requirements.lock anew from pyproject.toml (UPGRADE=1: newest versions too)
	@mkdir -p .cache && echo '*' > .cache/.gitignore
	@test -x .cache/uv/bin/uv || $(PY) -m pip install --quiet --target .cache/uv "$(UV)"
	@.cache/uv/bin/uv --no-config pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--extra dev $(if $(UPGRADE),--upgrade) --output-file requirements.lock pyproject.toml
	@echo "requirements.lock is up to date"

clean: ## remove .venv and the tools' caches; built wheels (.cache/wheels) and outputs/ stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache/uv *.egg-info

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

# llama-cpp-python comes first: the lock names it too, and pip must find it installed, not compile it in its own way.
$(VENV)/.locked: $(VENV)/.llama requirements.lock
	@echo "installing the locked dependencies"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@touch $@

KERNELS := tools/build/kernels.py $(wildcard operators/llama/native/*)
$(VENV)/.llama: $(VENV)/.made requirements.lock tools/build/build.py tools/build/backends.py tools/build/compilers.py $(KERNELS)
	@$(PY) tools/build/build.py
	@touch $@

$(VENV)/.made:
	@if $(PY) -c "$(CAN_BE_USED)" 2>/dev/null && $(PY) -m pip --version >/dev/null 2>&1; then touch $@; exit 0; fi; \
	for python in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS)); do \
		if "$$python" -c "$(CAN_BE_USED)" 2>/dev/null; then \
			echo "making $(VENV) with $$("$$python" --version)"; \
			"$$python" -m venv --clear $(VENV) && touch $@; exit $$?; \
		fi; \
	done; \
	echo "error: no Python 3.11 or later that can make environments among: $(or $(PYTHON),$(PYTHONS))." >&2; \
	echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: make PYTHON=..." >&2; exit 1
