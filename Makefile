# undertow: everything from a fresh clone with Python 3.11+, make and a package registry.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: help setup verify check lint types test test-report test-all browser bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.done ## a virtual environment in .venv with undertow and what its tests need

.venv/.done: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.venv/.done-bench: .venv/.done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

verify: setup ## run every claim at the smallest scale and write undertow-report/report.html
	$(BIN)/undertow verify --scale smoke --out undertow-report

check: lint types ## lint and types

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/ty check

test: check ## lint, types, fast tests and the examples in docstrings (code compiled without optimisation: a third faster)
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow and not browser'

test-report: setup browser ## report.html in a real browser: by mouse and keyboard, on a phone, in the dark, on paper
	$(BIN)/python -m pytest -q -m browser tests/report

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; \
	else \
	  echo "make test-report needs Chromium: install it (Debian: apt-get install chromium) and run this again." >&2; exit 1; \
	fi

test-all: check ## the same with the slow tests, and the code compiled as users have it
	$(BIN)/python -m pytest -q -n $(WORKERS) -m 'not browser'

bench: .venv/.done-bench ## speed against numba, NumPy and PyTorch, written to benchmarks/results
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.readme

clean: ## removes .venv and what tools left behind
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
