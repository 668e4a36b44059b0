# Everything a newcomer needs: `make demo`, then `make check`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE_VENV ?= .venv-engine
SOURCES := .venv-sources

.PHONY: help demo demo-glm check lint test reference check-engine check-long benchmarks wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /: /'

$(VENV)/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "stepscope needs Python 3.11 or newer; pass PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(VENV)/.stamp ## explain the bundled recording of a real engine
	@$(BIN)/stepscope explain examples/vllm-cpu-tp2

demo-glm: $(VENV)/.stamp ## explain the composed GLM-5.2 prefill case
	@$(BIN)/stepscope explain examples/glm52-prefill

check: lint test wheel ## lint, types, import contracts, tests, wheel (no engine, no browser)

lint: $(VENV)/.stamp ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.stamp ## the fast tests
	$(BIN)/pytest -n auto -m "not engine and not browser and not slow"

wheel: $(VENV)/.stamp ## the wheel builds, installs in an empty environment and runs
	tools/check_wheel.sh

reference: $(VENV)/.stamp ## write docs/reference.md again from the declared tables
	$(BIN)/python tools/write_reference.py

check-engine: $(VENV)/.stamp ## with the real engine, a real browser, Perfetto's own engine, Ray and numba
	sh examples/install_engine.sh $(ENGINE_VENV)
	tools/install_browser.sh
	$(BIN)/python -m pip install --quiet --editable '.[dev,browser,fast,ray]'
	tools/fetch_engine_sources.sh $(ENGINE_VENV)/bin/python $(SOURCES)
	STEPSCOPE_ENGINE_PYTHON=$(ENGINE_VENV)/bin/python STEPSCOPE_ENGINE_SOURCES=$(SOURCES) \
		$(BIN)/pytest -m "(engine or browser or extra) and not slow"

check-long: $(VENV)/.stamp ## what takes longer: trials, reading, simulated against measured latencies, the demo sweep
	$(BIN)/pytest -m slow
	$(BIN)/python benchmarks/reading.py
	sh examples/install_engine.sh $(ENGINE_VENV)
	$(BIN)/python benchmarks/same_time.py --engine-python $(ENGINE_VENV)/bin/python
	$(BIN)/python benchmarks/demo_sweep.py --engine-python $(ENGINE_VENV)/bin/python

benchmarks: $(VENV)/.stamp ## measure reading again and write its table (STEPSCOPE_TRACES=DIR)
	$(BIN)/python benchmarks/reading.py --write

clean: ## remove the environments and caches
	rm -rf $(VENV) $(ENGINE_VENV) $(SOURCES) dist build .mypy_cache .ruff_cache .pytest_cache
