# Two commands matter: `make demo` (set up, then the main job) and `make test` (set up, then every test).
# Everything is installed into .venv (and .venv-others); outside this folder only `make test` changes something: it
# installs a few Debian packages where it may (scripts/debian_packages.sh; APT=no keeps it from that).

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
PYTHON :=
ARGS :=
# One more than there are cores: many tests wait for processes.
JOBS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)

# How long the random tests run. LONG is what the project promises; without a setting the tests take their short form.
LONG := FD_ROUTING_TEST_EXAMPLES=2000 FD_ROUTING_TEST_MUTATIONS=100000 FD_ROUTING_TEST_KILLS=1000 \
  FD_ROUTING_TEST_CRASHES=200 FD_ROUTING_TEST_SEQUENCES=10000 FD_ROUTING_TEST_SOAK_SECONDS=1800
SOAK := 1800

# The tests start thousands of processes; NumPy's BLAS, which none of them needs, would start threads in each.
LEAN := OPENBLAS_NUM_THREADS=1

# A quick part of the suite, for further Pythons; paddle is not installed there.
QUICK := FD_ROUTING_TEST_EXAMPLES=30 FD_ROUTING_TEST_MUTATIONS=500
QUICK_TESTS := tests/contract tests/resolver tests/store \
  tests/reader/test_ranges.py tests/reader/test_reader.py tests/reader/test_turns.py

.PHONY: help setup demo test lint unit wheel pythons packages test-long soak bench docs clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@echo "make demo       set up, then run the main job over the stores local and rdma (ARGS=--store=... for one)"
	@echo "make test       set up, then everything: lint, types, tests, the wheel, a third-party store, other Pythons"
	@echo "make setup      set up only"
	@echo "make lint       ruff and mypy --strict"
	@echo "make test-long  the tests with their long runs"
	@echo "make soak       a writer at work for half an hour, whose worker is killed now and then (SOAK=seconds)"
	@echo "make bench      the benchmarks behind the README's figures"
	@echo "make docs       write the generated blocks of README.md anew"
	@echo "make clean      remove everything that was made here"
	@echo "JOBS=...        processes that run the tests; two more than there are cores if not said"
	@echo "PYTHON=...      which Python .venv is made with (>= 3.10)"

# An environment whose Python is gone, or that was made for another folder, is made or installed anew.
$(shell [ -x $(PY) ] || rm -f $(VENV)/made)
$(shell [ "$$(cat $(VENV)/installed 2>/dev/null)" = "$(CURDIR)" ] || rm -f $(VENV)/installed $(VENV)/installed-dev)

$(VENV)/made: scripts/make_venv.sh
	@scripts/make_venv.sh $(VENV) $(PYTHON)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml
	@echo "Installing fastdeploy-routing-plugins into $(VENV) ..."
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable .
	@echo "$(CURDIR)" > $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Installing what the tests need into $(VENV): paddlepaddle (about 200 MB), pytest, ruff, mypy ..."
	@$(PIP) --editable '.[cpu,testing]' --group dev
	@touch $@

setup: $(VENV)/installed-dev

# ARGS that name a store, or go with one store only, choose it.
DEMOS := --store=local --store=rdma
ifneq (,$(filter --store% --dir% --config%,$(ARGS)))
DEMOS := ''
else ifneq (,$(filter --transport%,$(ARGS)))
DEMOS := --store=rdma
else ifneq (,$(filter --keep,$(ARGS)))
DEMOS := --store=local
endif

demo: $(VENV)/installed
	@set -e; for store in $(DEMOS); do $(VENV)/bin/fd-routing demo $$store $(ARGS); done

test: packages setup lint unit wheel pythons
	@echo "make test: everything passed"

packages:
	@scripts/debian_packages.sh

lint: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

# The tests start thousands of processes; without bytecode at hand each of them compiles everything, if it may not write.
unit: setup
	@$(PY) -m compileall -q fastdeploy_routing_plugins tests
	$(LEAN) $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term $(ARGS)

wheel: setup
	$(LEAN) $(PY) scripts/wheel_check.py

pythons: setup
	$(LEAN) $(QUICK) $(PY) scripts/other_pythons.py -n $(JOBS) --dist loadfile $(QUICK_TESTS)

test-long: packages setup
	$(LONG) $(PY) -m pytest $(ARGS)

soak: setup
	FD_ROUTING_TEST_SOAK_SECONDS=$(SOAK) $(PY) -m pytest tests/writer/test_soak.py -rP $(ARGS)

bench: setup
	@status=0; for name in start_up local_store hand_over metadata transport rdma_store; do \
	  echo "benchmarks/$$name.py $(ARGS)"; $(PY) benchmarks/$$name.py $(ARGS) || status=1; done; exit $$status

docs: setup
	$(PY) scripts/readme_includes.py --write

clean:
	rm -rf $(VENV) .venv-others dist build .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
